"""GLUE's own metrics, as a metric of the library `evaluate`."""

import datasets
import evaluate
from sklearn.metrics import accuracy_score, matthews_corrcoef

# `evaluate` copies this file to a place of its own, where it has no siblings.
from ngram_wdr_hf.data.glue import GLUE_TASKS

_DESCRIPTION = """
What the results of GLUE's tasks are measured by: of SST-2 and RTE the accuracy, from 0 to 1; of CoLA the Matthews
correlation, from -1 to 1, which is 0 for any guess that does not look at the sentence.
"""

_KWARGS_DESCRIPTION = r"""
Args:
    predictions (`list[int]`): The labels that a model gives, one an example.
    references (`list[int]`): What they should be.
Returns:
    accuracy (`float`): Of `sst2` and `rte`: the share of right labels.
    matthews_correlation (`float`): Of `cola`: the correlation of the two.
Examples:
    >>> import evaluate
    >>> from ngram_wdr_hf.metrics import GLUE
    >>> metric = evaluate.load(GLUE, "cola")
    >>> results = metric.compute(predictions=[1, 0, 1], references=[1, 0, 0])
"""

_CITATION = """
@inproceedings{wang2019glue,
    title = {{GLUE}: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding},
    author = {Wang, Alex and Singh, Amanpreet and Michael, Julian and Hill, Felix and Levy, Omer and Bowman, Samuel},
    booktitle = {International Conference on Learning Representations},
    year = {2019}
}
"""
_METRICS = {"accuracy": accuracy_score, "matthews_correlation": matthews_corrcoef}


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class Glue(evaluate.Metric):
    """Scores labels with scikit-learn."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in GLUE_TASKS:
            raise ValueError(
                f"There is no task {self.config_name!r}: load the metric with one of {', '.join(GLUE_TASKS)}, as in "
                '`evaluate.load(GLUE, "cola")`.'
            )
        return evaluate.MetricInfo(
            module_type="metric",
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
            ),
            reference_urls=["https://gluebenchmark.com"],
        )

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        name = GLUE_TASKS[self.config_name].metric
        return {name: float(_METRICS[name](references, predictions))}
