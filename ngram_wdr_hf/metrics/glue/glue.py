"""GLUE's own metrics, as a metric of the library `evaluate`."""

import datasets
import evaluate
from sklearn.metrics import accuracy_score, matthews_corrcoef

_METRICS = {
    "sst2": ("accuracy", accuracy_score),
    "cola": ("matthews_correlation", matthews_corrcoef),
    "rte": ("accuracy", accuracy_score),
}


class Glue(evaluate.Metric):
    """
    The metric of a GLUE task, its configuration name: `accuracy`, from 0 to 1, for `sst2` and `rte`;
    `matthews_correlation`, from -1 to 1, for `cola`, where predictions that ignore the sentence score 0.
    """

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in _METRICS:
            raise ValueError(f"`config_name` must be one of {', '.join(_METRICS)}, got {self.config_name!r}.")
        return evaluate.MetricInfo(
            description=self.__doc__,
            citation="https://gluebenchmark.com",
            features=datasets.Features(dict.fromkeys(("predictions", "references"), datasets.Value("int64"))),
        )

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        name, metric = _METRICS[self.config_name]
        return {name: float(metric(references, predictions))}
