"""What a translation run leaves to look at."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...evaluation.bleu import TranslationScores
from ...evaluation.scores import Scores
from ..common.report import RunResult, as_markdown, as_text, plot_over_lambda, write_metrics, write_model_card
from ..trainer import loss_names

USAGE = """from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("THIS_FOLDER", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")
ids = model.generate(**tokenizer(["A sentence."], return_tensors="pt"))
print(tokenizer.batch_decode(ids, skip_special_tokens=True))"""


@dataclass(frozen=True)
class Translated:
    """
    A sentence of the test set.

    Args:
        source (`str`): What was translated.
        reference (`str`, *optional*): A person's translation.
        plain (`str`): The model's without the ensemble.
        hypothesis (`str`): The model's with the λ that was chosen.
    """

    source: str
    reference: str | None
    plain: str
    hypothesis: str


@dataclass
class NmtResult(RunResult):
    """
    A finished translation run.

    Args:
        scores (`dict[str, Scores]`): The references' perplexities by split.
        translations (`dict[str, dict[float, TranslationScores]]`): BLEU and chrF by split and λ.
        translated (`list[Translated]`): The test set.
        num_examples (`int`): How many of them are shown.
        search (`dict[str, Any]`): How they were found.
    """

    scores: dict[str, Scores]
    translations: dict[str, dict[float, TranslationScores]]
    translated: list[Translated]
    num_examples: int
    search: dict[str, Any]

    def examples(self) -> list[Translated]:
        """Sentences from all over the test set, those first that the ensemble changes."""
        step = max(1, len(self.translated) // 50)
        spread = sorted(self.translated[::step], key=lambda sentence: sentence.plain == sentence.hypothesis)
        return spread[: self.num_examples]


def save_metrics(result: NmtResult, path: Path) -> None:
    splits = {}
    for split, by_lambda in result.translations.items():
        any_scores = next(iter(by_lambda.values()))
        splits[split] = {
            "lambda": list(by_lambda),
            "bleu": [scores.bleu for scores in by_lambda.values()],
            "chrf": [scores.chrf for scores in by_lambda.values()],
            "bleu_signature": any_scores.bleu_signature,
            "chrf_signature": any_scores.chrf_signature,
            "num_sentences": any_scores.num_sentences,
            **result.search,
        }
    for split, scores in result.scores.items():
        splits.setdefault(split, {}).update(
            {
                "perplexity_lambda": scores.lambdas,
                "token_perplexity": scores.perplexities(),
                **dict(zip(loss_names(len(scores.head_nlls)), scores.head_nlls, strict=True)),
                "num_tokens": scores.num_tokens,
            }
        )
    write_metrics(result, splits, path)


def save_translations(result: NmtResult, path: Path) -> None:
    """The test set, if there is one, as JSON lines: source, reference, plain and ensembled translation."""
    if not result.translated:
        return
    lines = [json.dumps(vars(sentence), ensure_ascii=False) for sentence in result.translated]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def translation_table(results: Sequence[NmtResult], name: str) -> list[list[str]]:
    """`"bleu"` or `"chrf"` for every model, split and λ that was tried; a star marks the λ that was chosen."""
    lambdas = sorted({value for result in results for tried in result.translations.values() for value in tried})
    rows = [["model", "split", "sentences", *(f"λ={value:g}" for value in lambdas)]]
    for result in results:
        for split, by_lambda in result.translations.items():
            cells = []
            for value in lambdas:
                mark = "*" if value == result.ensemble_lambda and result.head_parameters else ""
                cells.append(f"{getattr(by_lambda[value], name):.2f}{mark}" if value in by_lambda else "")
            rows.append([result.name, split, f"{next(iter(by_lambda.values())).num_sentences:,}", *cells])
    return rows


def print_tables(results: Sequence[NmtResult]) -> None:
    tried = [
        scores for result in results for by_lambda in result.translations.values() for scores in by_lambda.values()
    ]
    if not tried:
        return
    for name, signature in (("bleu", tried[0].bleu_signature), ("chrf", tried[0].chrf_signature)):
        title = {"bleu": "BLEU", "chrf": "chrF"}[name]
        print(f"\n{title} ({signature}; * the λ chosen on validation)\n\n{as_text(translation_table(results, name))}")


def print_examples(result: NmtResult) -> None:
    for sentence in result.examples():
        print(f"\n{_side_by_side(result, sentence)}")


def _side_by_side(result: NmtResult, sentence: Translated) -> str:
    lines = {"source": sentence.source, "reference": sentence.reference, "plain, λ=0": sentence.plain}
    if result.head_parameters and result.ensemble_lambda > 0:
        lines[f"ensemble, λ={result.ensemble_lambda:g}"] = sentence.hypothesis
    width = max(map(len, lines))
    return "\n".join(f"{label:<{width}}  {text}" for label, text in lines.items() if text is not None)


def save_lambda_plot(results: Sequence[NmtResult], path: Path) -> None:
    """BLEU over λ on the validation set, where all of them were tried."""

    def bleu(result: NmtResult, split: str) -> dict[float, float]:
        return {value: scores.bleu for value, scores in result.translations[split].items()}

    splits = [split for split in ("validation",) if all(split in result.translations for result in results)]
    if splits:
        plot_over_lambda(results, splits, bleu, "BLEU", path)


def save_model_card(result: NmtResult, path: Path) -> None:
    tables = "\n\n".join(
        f"{title}:\n\n{as_markdown(translation_table([result], name))}"
        for name, title in (("bleu", "SacreBLEU"), ("chrf", "chrF"))
    )
    signatures = {f"`{s.bleu_signature}`" for by_lambda in result.translations.values() for s in by_lambda.values()}
    samples = "\n\n".join(f"```text\n{_side_by_side(result, sentence)}\n```" for sentence in result.examples())
    write_model_card(
        result,
        path,
        kind="A translation model",
        tags=["pipeline_tag: translation"],
        usage=USAGE,
        tables=f"{tables}\n\n{' '.join(sorted(signatures))}; {result.search['num_beams']} beams.",
        samples=samples,
    )
