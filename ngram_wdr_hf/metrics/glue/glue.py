"""GLUE's own metrics, as a metric of the library `evaluate`."""

import datasets
import evaluate
from sklearn.metrics import accuracy_score, matthews_corrcoef

# Absolute imports, because `evaluate` copies this file to its cache.
from ngram_wdr_hf.data.glue import GLUE_TASKS

_DESCRIPTION = """
The metrics of GLUE tasks: accuracy, from 0 to 1, for SST-2 and RTE; Matthews correlation, from -1 to 1, for CoLA,
where predictions that ignore the sentence score 0.
"""

_KWARGS_DESCRIPTION = r"""
Args:
    predictions (`list[int]`): The predicted labels.
    references (`list[int]`): The true labels.
Returns:
    accuracy (`float`): For `sst2` and `rte`, the share of correct labels.
    matthews_correlation (`float`): For `cola`, the correlation of predictions and references.
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
    """GLUE's metric of the task given as `config_name`. `compute` returns a dictionary with this one score."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in GLUE_TASKS:
            raise ValueError(
                f"`config_name` must be one of {', '.join(GLUE_TASKS)}, got {self.config_name!r}: load the metric as "
                'in `evaluate.load(GLUE, "cola")`.'
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
