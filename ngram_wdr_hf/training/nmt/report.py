"""Results of a translation run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...evaluation.scores import Scores
from ...evaluation.translation_scores import TranslationScores
from ...method.ensemble import Ensemble, describe_ensemble, is_lambda
from ..common.model_card import STAR, as_markdown, code_block, literal
from ..common.report import TaskResult, as_text, describe_fits, describe_mark, ensemble_table, lambda_table
from ..trainer import loss_names

USAGE = """from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained({name}, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained({name}, trust_remote_code=True)
ids = model.generate(**tokenizer([{source}], return_tensors="pt", truncation=True))
print(tokenizer.batch_decode(ids, skip_special_tokens=True))"""
EXAMPLE_SOURCE = "A sentence."


@dataclass(frozen=True)
class Translated:
    """
    A sentence of the test set with its translations.

    Args:
        source (`str`): The source sentence.
        reference (`str`, *optional*): The reference translation; `None` if the test set has none.
        plain (`str`): The translation without the ensemble, λ = 0.
        hypothesis (`str`): The translation with the chosen ensemble; equal to `plain` if that is λ = 0.
    """

    source: str
    reference: str | None
    plain: str
    hypothesis: str


@dataclass
class NmtResult(TaskResult):
    """
    A finished translation run.

    Args:
        scores (`dict[str, Scores]`): Perplexities of the references by split.
        translations (`dict[str, dict[Ensemble, TranslationScores]]`): BLEU and chrF by split and ensemble: all for
            `validation`; for `test`, λ = 0, the best λ and those with weights.
        translated (`list[Translated]`): The translated test set; empty without one.
        num_examples (`int`): Number of translations to show.
        search (`dict[str, Any]`): The settings of the search, `num_beams` and `length_penalty`.
    """

    kind = "A translation model"
    pipeline_tag = "translation"
    lambda_figure = "BLEU"

    scores: dict[str, Scores]
    translations: dict[str, dict[Ensemble, TranslationScores]]
    translated: list[Translated]
    num_examples: int
    search: dict[str, Any]

    def examples(self) -> list[Translated]:
        """
        Return up to `num_examples` sentences spread over the test set, first those with different translations with
        and without the ensemble.
        """
        step = max(1, len(self.translated) // 50)
        candidates = sorted(self.translated[::step], key=lambda sentence: sentence.plain == sentence.hypothesis)
        return candidates[: self.num_examples]

    def metrics(self) -> dict[str, dict[str, Any]]:
        splits = {}
        for split, by_ensemble in self.translations.items():
            any_scores = next(iter(by_ensemble.values()))
            by_lambda = {value: scores for value, scores in by_ensemble.items() if is_lambda(value)}
            splits[split] = {
                "lambda": list(by_lambda),
                "bleu": [scores.bleu for scores in by_lambda.values()],
                "chrf": [scores.chrf for scores in by_lambda.values()],
                "bleu_signature": any_scores.bleu_signature,
                "chrf_signature": any_scores.chrf_signature,
                "ensembles": {
                    name: {"bleu": by_ensemble[ensemble].bleu, "chrf": by_ensemble[ensemble].chrf}
                    for name, ensemble in self.ensembles().items()
                },
                "num_sentences": any_scores.num_sentences,
                **self.search,
            }
        for split, scores in self.scores.items():
            splits.setdefault(split, {}).update(
                {
                    "perplexity_lambda": scores.lambdas,
                    "token_perplexity": scores.perplexities(),
                    "ensemble_perplexity": {
                        name: scores.perplexity(ensemble)
                        for name, ensemble in self.ensembles().items()
                        if ensemble in scores.ensembles
                    },
                    **dict(zip(loss_names(len(scores.head_nlls)), scores.head_nlls, strict=True)),
                    "num_tokens": scores.num_tokens,
                }
            )
        return splits

    def usage(self, name: str) -> str:
        source = self.examples()[0].source if self.examples() else EXAMPLE_SOURCE
        return USAGE.format(name=name, source=literal((self.settings.get("source_prefix") or "") + source))

    def tables(self) -> str:
        tables = "\n\n".join(
            f"{title}:\n\n{as_markdown(translation_table([self], name, STAR))}"
            for name, title in (("bleu", "SacreBLEU"), ("chrf", "chrF"))
        )
        if len(self.ensembles()) > 1:
            by_ensemble = as_markdown(scores_by_ensemble([self], "bleu", STAR))
            tables = f"{tables}\n\nSacreBLEU, with and without the heads:\n\n{by_ensemble}\n\n{describe_fits([self])}"
        signatures = {f"`{s.bleu_signature}`" for by_lambda in self.translations.values() for s in by_lambda.values()}
        return f"{tables}\n\n{' '.join(sorted(signatures))}; {self.search['num_beams']} beams."

    def sample_text(self) -> str:
        return "\n\n".join(code_block(_side_by_side(self, sentence)) for sentence in self.examples())

    def over_lambda(self) -> dict[str, dict[float, float]]:
        # Only the validation set is translated with every λ.
        all_scores = self.translations.get("validation", {})
        by_lambda = {value: scores.bleu for value, scores in all_scores.items() if is_lambda(value)}
        return {"validation": by_lambda} if by_lambda else {}

    def with_weights(self) -> dict[str, float]:
        weights = self.ensembles().get("fitted", self.ensembles().get("weights"))
        return {split: scores[weights].bleu for split, scores in self.translations.items() if weights in scores}


def save_translations(result: NmtResult, path: Path) -> None:
    """Write the translated test set as JSON lines with the fields of `Translated`; no file without a test set."""
    if not result.translated:
        return
    lines = [json.dumps(vars(sentence), ensure_ascii=False) for sentence in result.translated]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def translation_table(results: Sequence[NmtResult], name: str, mark: str = "*") -> list[list[str]]:
    """
    Return a table of the score `name`, `"bleu"` or `"chrf"`: a row per model and split, a column per λ. An asterisk
    marks the chosen λ.
    """
    figures = []
    for result in results:
        splits = {}
        for split, all_scores in result.translations.items():
            by_lambda = {value: getattr(scores, name) for value, scores in all_scores.items() if is_lambda(value)}
            splits[split] = next(iter(all_scores.values())).num_sentences, by_lambda
        figures.append(splits)
    return lambda_table(results, "sentences", figures, mark)


def scores_by_ensemble(results: Sequence[NmtResult], name: str, mark: str = "*") -> list[list[str]]:
    """
    Return a table of the score `name`, `"bleu"` or `"chrf"`: a row per model and split, a column per ensemble. An
    asterisk marks the chosen one.
    """
    figures = [
        {
            split: (next(iter(scores.values())).num_sentences, {e: getattr(s, name) for e, s in scores.items()})
            for split, scores in result.translations.items()
        }
        for result in results
    ]
    return ensemble_table(results, "sentences", figures, mark)


def print_tables(results: Sequence[NmtResult]) -> None:
    """Print a table of BLEU and one of chrF, with a row per model and split; nothing if no split has references."""
    all_scores = [
        scores for result in results for by_lambda in result.translations.values() for scores in by_lambda.values()
    ]
    if not all_scores:
        return
    has_weights = any(len(result.ensembles()) > 1 for result in results)
    table, title = translation_table, ""
    if has_weights:
        table, title = scores_by_ensemble, ", with and without the heads"
    for name, label, signature in (
        ("bleu", "BLEU", all_scores[0].bleu_signature),
        ("chrf", "chrF", all_scores[0].chrf_signature),
    ):
        print(f"\n{label}{title} {describe_mark(results)}\n\n{as_text(table(results, name))}\n\n{signature}")
    if has_weights:
        print(f"\n{describe_fits(results)}")


def print_examples(result: NmtResult) -> None:
    """Print `num_examples` test sentences with the model's translations and, if any, the references."""
    for sentence in result.examples():
        print(f"\n{_side_by_side(result, sentence)}")


def _side_by_side(result: NmtResult, sentence: Translated) -> str:
    lines = {"source": sentence.source, "reference": sentence.reference, "plain, λ=0": sentence.plain}
    if result.head_parameters and result.ensemble != 0:
        lines[f"ensemble, {describe_ensemble(result.ensemble)}"] = sentence.hypothesis
    width = max(map(len, lines))
    return "\n".join(f"{label:<{width}}  {text}" for label, text in lines.items() if text is not None)
