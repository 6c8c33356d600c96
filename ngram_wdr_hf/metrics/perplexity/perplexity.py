"""The perplexity of texts under a model with N-gram heads, as a metric of the library `evaluate`."""

import io
from itertools import accumulate, chain, pairwise

import datasets
import evaluate
import torch

# Absolute imports, because `evaluate` copies this file to its cache.
from ngram_wdr_hf.data.token_stream import TokenStream, evaluation_windows, tokenize
from ngram_wdr_hf.data.tokenizers import load_tokenizer
from ngram_wdr_hf.evaluation.models import DEFAULT_BLOCK_SIZE, load_checkpoint, max_positions
from ngram_wdr_hf.evaluation.scores import Scores, score


class Perplexity(evaluate.Metric):
    """
    Perplexity of texts under a causal language model with or without N-gram heads. Every token of a text is predicted
    once, the first and the last included. Returns `perplexities`, that of each text by token, and `mean_perplexity`;
    and for all texts together `perplexity`, by token, and `word_perplexity`, by white-space-separated words plus one
    per line break, as in the paper. A file's text, given as one string, has the values that `ngram-wdr clm` reports.

    Args:
        model_id (`str`): A folder or a name on the Hub: a checkpoint with its tokenizer.
        ensemble_lambda (`float`, *optional*): The paper's λ, from 0 to 1; the model's own ensemble by default.
        stride (`int`, *optional*): How far the window moves in a text longer than `block_size`. A smaller stride gives
            every token more context and takes longer; `block_size` by default.
        batch_size (`int`, *optional*, defaults to 16): Windows per batch.
        block_size (`int`, *optional*): Length of the window; by default the model's maximum, or 1024 if it has none.
        device (`str`, *optional*): The device; by default, a GPU if there is one.
        ensemble_weights (`list[float]`, *optional*): The N weights of the ensemble, instead of a λ.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.__doc__,
            citation="https://arxiv.org/abs/2409.03295",
            features=datasets.Features({"predictions": datasets.Value("string")}),
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
        tokenizer = load_tokenizer(model_id)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        model = load_checkpoint(model_id, "causal", tokenizer).to(device)
        ensemble = model.ngram_ensemble(ensemble_lambda, ensemble_weights)
        longest = max_positions(model)
        block_size = block_size or longest or DEFAULT_BLOCK_SIZE
        if longest is not None and block_size > longest:
            raise ValueError(f"`block_size` must be at most {longest}, the model's maximum, got {block_size}.")
        if not all(predictions):
            raise ValueError("`predictions` has an empty text: leave it out.")
        # Tokenized line by line, like a file.
        lines = [io.StringIO(text, newline=None).readlines() for text in predictions]
        rows = tokenize(datasets.Dataset.from_dict({"text": list(chain(*lines))}), tokenizer)
        scores = []
        for begin, end in pairwise(accumulate(map(len, lines), initial=0)):
            stream = TokenStream.from_rows(rows.select(range(begin, end)))
            text = evaluation_windows(stream, tokenizer, block_size, stride)
            scores.append(score(model, text, [ensemble], batch_size))
        counts = (sum(getattr(text, name) for text in scores) for name in ("num_tokens", "num_words"))
        together = Scores([ensemble], [sum(text.nll_sums[0] for text in scores)], [], *counts)
        perplexities = [text.perplexity(ensemble) for text in scores]
        return {
            "perplexities": perplexities,
            "mean_perplexity": sum(perplexities) / len(perplexities),
            "perplexity": together.perplexity(ensemble),
            "word_perplexity": together.perplexity(ensemble, "word"),
        }
