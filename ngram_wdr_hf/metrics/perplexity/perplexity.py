"""The perplexity of texts under a model with N-gram heads, as a metric of the library `evaluate`."""

import io
from itertools import accumulate, pairwise

import datasets
import evaluate
import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Absolute imports, because `evaluate` copies this file to its cache.
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.token_stream import TokenStream, evaluation_windows, tokenize
from ngram_wdr_hf.data.tokenizers import load_tokenizer
from ngram_wdr_hf.evaluation.models import DEFAULT_BLOCK_SIZE, load_checkpoint, max_positions
from ngram_wdr_hf.evaluation.scores import Scores, score
from ngram_wdr_hf.method.configuration import check_integer

_DESCRIPTION = """
Perplexity of texts under a language model with N-gram heads, with the paper's ensemble: the exponential of the mean
negative log-likelihood. Every token of a text is predicted once, the first and the last included. A text may be longer
than the model's context. The text of a file, given as one string, has the perplexity that `ngram-wdr clm` reports.
"""

_KWARGS_DESCRIPTION = r"""
Args:
    predictions (`list[str]`): The texts, scored separately.
    model_id (`str`): A folder or a name on the Hub: a checkpoint with its tokenizer, with or without
        N-gram heads.
    ensemble_lambda (`float`, *optional*): The paper's λ, from 0 to 1; the model's own ensemble by default.
    ensemble_weights (`list[float]`, *optional*): The N weights of the ensemble, instead of a λ.
    stride (`int`, *optional*): How far the window moves in a text longer than `block_size`. A smaller stride gives
        every token more context and takes longer; `block_size` by default.
    batch_size (`int`, *optional*, defaults to 16): Windows per batch.
    block_size (`int`, *optional*): Length of the window; by default the model's maximum, or 1024 if it has none.
    device (`str`, *optional*): The device; by default, a GPU if there is one.
Returns:
    perplexities (`list[float]`): The perplexity of each text, by token.
    mean_perplexity (`float`): Their mean.
    perplexity (`float`): The perplexity of all texts together, by token.
    word_perplexity (`float`): The perplexity of all texts by word, as in the paper: white-space-separated words plus
        one per line break, for any tokenizer.
Examples:
    >>> import evaluate
    >>> from ngram_wdr_hf.metrics import PERPLEXITY
    >>> metric = evaluate.load(PERPLEXITY)
    >>> results = metric.compute(predictions=["lorem ipsum\n"], model_id="my-model", ensemble_lambda=0.4)
"""

_CITATION = """
@article{heo2024ngram,
    title = {N-gram Prediction and Word Difference Representations for Language Modeling},
    author = {Heo, DongNyeong and Rim, Daniela Noemi and Choi, Heeyoul},
    journal = {arXiv preprint arXiv:2409.03295},
    year = {2024}
}
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class Perplexity(evaluate.Metric):
    """Perplexity of texts under a checkpoint: by token for each text, by token and by word for all texts together."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            module_type="metric",
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"predictions": datasets.Value("string")}),
            reference_urls=["https://hf.co/papers/2409.03295"],
        )

    def _compute(
        self,
        predictions: list[str],
        model_id: str,
        ensemble_lambda: float | None = None,
        stride: int | None = None,
        batch_size: int = 16,
        block_size: int | None = None,
        device: str | None = None,
        ensemble_weights: list[float] | None = None,
    ) -> dict[str, list[float] | float]:
        for name, value in (("stride", stride), ("batch_size", batch_size), ("block_size", block_size)):
            if value is not None:
                check_integer(name, value)
        _check_texts(predictions)
        model, tokenizer = _load(model_id)
        model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        ensemble = model.ngram_ensemble(ensemble_lambda, ensemble_weights)
        longest = max_positions(model)
        if None not in (block_size, longest) and block_size > longest:
            raise InputError(f"`block_size` must be at most {longest}, the model's maximum, got {block_size}.")
        block_size = block_size or longest or DEFAULT_BLOCK_SIZE

        windows = [
            evaluation_windows(stream, tokenizer, block_size, stride) for stream in _streams(predictions, tokenizer)
        ]
        for i, text in enumerate(windows):
            if text.num_targets < 1:
                raise InputError(
                    f"`predictions[{i}]` has only {len(text.stream)} tokens, so there is nothing to predict: leave it "
                    "out."
                )
        scores = [score(model, text, [ensemble], batch_size) for text in windows]
        together = Scores(
            ensembles=[ensemble],
            nll_sums=[sum(text.nll_sums[0] for text in scores)],
            head_nlls=[],
            num_tokens=sum(text.num_tokens for text in scores),
            num_words=sum(text.num_words for text in scores),
        )
        perplexities = [text.perplexity(ensemble) for text in scores]
        return {
            "perplexities": perplexities,
            "mean_perplexity": float(np.mean(perplexities)),
            "perplexity": together.perplexity(ensemble),
            "word_perplexity": together.perplexity(ensemble, "word"),
        }


def _check_texts(texts: list[str]) -> None:
    if not len(texts):
        raise InputError("`predictions` is empty: give at least one text.")
    for i, text in enumerate(texts):
        if not text or text.isspace():
            raise InputError(f"`predictions[{i}]` is empty or only white space: leave it out.")


def _load(model_id: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    tokenizer = load_tokenizer(model_id)
    return load_checkpoint(model_id, "causal", tokenizer), tokenizer


def _streams(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[TokenStream]:
    """Return a stream of the tokens of each text, tokenized line by line like a file."""
    lines = [io.StringIO(text, newline=None).readlines() for text in texts]
    rows = datasets.Dataset.from_dict({"text": [line for text in lines for line in text]})
    rows = tokenize(rows, tokenizer)
    ends = accumulate(map(len, lines), initial=0)
    return [TokenStream.from_rows(rows.select(range(begin, end))) for begin, end in pairwise(ends)]
