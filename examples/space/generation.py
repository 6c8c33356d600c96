"""The model behind the page: loading it, generating with and without drafts, and the comparison of both."""

import statistics
import time
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from ngram_wdr_hf.analysis import TracedRow, TracedText
from ngram_wdr_hf.analysis.token_text import token_texts
from ngram_wdr_hf.analysis.traced_text import generate_after, read_prompts, traced_tokens
from ngram_wdr_hf.backbones.registry import is_masked
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.tokenizers import load_tokenizer, start_token_id
from ngram_wdr_hf.decoding.statistics import SpeculationStatistics
from ngram_wdr_hf.evaluation.models import load_checkpoint, max_positions
from ngram_wdr_hf.method.ensemble import Ensemble, describe_ensemble, ensemble_arguments
from ngram_wdr_hf.modeling.saved import naming_missing
from ngram_wdr_hf.modeling.signature import ENSEMBLE_ARGUMENTS
from ngram_wdr_hf.training.common.report import describe

# Both ways of decoding take turns until this many seconds or rounds are over; a large model has one round.
MIN_SECONDS, MAX_ROUNDS = 2.0, 5
WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Checkpoint:
    """A causal language model with heads, its tokenizer, and the folder or name that it was loaded from."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def ensemble(self) -> float | tuple[float, ...]:
        """The ensemble of `generate` by default, λ or N weights: the generation config's, or else the model's."""
        options = vars(self.model.generation_config)
        return self.model.ngram_ensemble(**{name: options.get(name) for name in ENSEMBLE_ARGUMENTS})

    def describe(self) -> str:
        """Return a line of Markdown on the model."""
        facts, ensemble, longest = describe(self.model), self.ensemble, max_positions(self.model)
        heads = f"{facts['head_parameters'] / 1e6:.2f} million of them in the heads"
        return (
            f"`{self.name}`: {self.model.config.model_type}, {facts['name']}, {facts['num_parameters'] / 1e6:.2f} "
            f"million parameters, {heads}. It reads {longest or 'any number of'} tokens. Its own ensemble: "
            f"{describe_ensemble(ensemble) if ensemble else 'none'}."
        )


def load(name: str) -> Checkpoint:
    """
    Load a checkpoint from a folder or the Hub. Raise an `InputError` if it is no causal language model with heads that
    can draft.
    """
    with naming_missing(name):
        config = AutoConfig.from_pretrained(name)
    if config.is_encoder_decoder or is_masked(config):
        raise InputError(
            f"{name} is of type {config.model_type}, and this app shows causal language models: choose a model of "
            "`train_clm.py`."
        )
    tokenizer = load_tokenizer(name)
    model = load_checkpoint(name, "causal", tokenizer)
    if not model.ngram_heads:
        raise InputError(
            f"{name} has no heads, and this app shows what heads predict: choose a model that was trained with "
            "some, or train them with `ngram-wdr heads`."
        )
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    # The first generation of a process is slow. A model that cannot draft raises an error here.
    for use_mtp in (False, True):
        generate_after(model, [[0]], WARM_UP_TOKENS, use_mtp, do_sample=False, num_beams=1)
    return Checkpoint(name, model, tokenizer)


class Way(NamedTuple):
    """One way of decoding: its tokens, its time as the median of all rounds, and tokens per forward pass."""

    tokens: list[int]
    seconds: float
    tokens_per_forward: float

    @property
    def tokens_per_second(self) -> float:
        return len(self.tokens) / self.seconds


@dataclass(frozen=True)
class Generation:
    """What the page shows: the text by source, and both ways of decoding."""

    traced: TracedText
    plain: Way
    drafted: Way
    is_sampled: bool
    note: str | None

    @property
    def speedup(self) -> float:
        return self.drafted.tokens_per_second / self.plain.tokens_per_second

    def speed_table(self) -> str:
        """Return the comparison of both ways as Markdown: a table, and what it says in words."""
        plain, drafted = self.plain, self.drafted
        return f"""
| | without drafts | with drafts |
|---|--:|--:|
| tokens per second | {plain.tokens_per_second:.1f} | {drafted.tokens_per_second:.1f} |
| tokens per forward pass | {plain.tokens_per_forward:.2f} | {drafted.tokens_per_forward:.2f} |
| tokens | {len(plain.tokens)} | {len(drafted.tokens)} |
| seconds | {plain.seconds:.2f} | {drafted.seconds:.2f} |

{self._verdict()} {self._sameness()}"""

    def _verdict(self) -> str:
        if self.speedup >= 1:
            return f"**With drafts, decoding is {self.speedup:.2f} times as fast.**"
        return (
            f"**With drafts, decoding is slower here: {self.speedup:.2f} times as fast as without.** The forward "
            "passes they save cost less than making and checking them: common in small models and in sampling."
        )

    def _sameness(self) -> str:
        if self.is_sampled:
            return "Both texts are samples of the same distribution, so they differ by chance."
        if self.plain.tokens == self.drafted.tokens:
            return "Both texts are the same, token for token."
        return "The texts differ: two tokens were equally likely up to rounding, and each way chose another."


def generate(
    checkpoint: Checkpoint,
    prompt: str,
    max_new_tokens: int,
    ensemble: Ensemble,
    temperature: float | None = None,
    seed: int = 0,
    always_drafts: bool = False,
) -> Generation:
    r"""
    Continue a prompt with and without drafts. Raise a `ValueError` of one sentence for unusable input.

    Args:
        checkpoint ([`Checkpoint`]): The model.
        prompt (`str`): The prompt; if empty, the text begins with the tokenizer's first token, if it has one.
        max_new_tokens (`int`): The maximum number of new tokens, also limited by the model's positions.
        ensemble (`Ensemble`): λ or the weights of the ensemble; 0 for none.
        temperature (`float`, *optional*): The temperature of sampling; `None` for greedy search.
        seed (`int`, *optional*, defaults to 0): The seed of sampling.
        always_drafts (`bool`, *optional*, defaults to `False`): Whether the heads draft even where it does not pay.
    """
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    ids = _read_prompt(checkpoint, prompt)
    sampling = {"do_sample": False} if temperature is None else {"do_sample": True, "temperature": temperature}
    drafting = {"draft_threshold": 0.0} if always_drafts else {}
    options = {"num_beams": 1, **ensemble_arguments(ensemble), **sampling, **drafting}
    seconds: dict[bool, list[float]] = {False: [], True: []}
    outputs, begin = {}, time.perf_counter()
    while not outputs or (time.perf_counter() - begin < MIN_SECONDS and len(seconds[True]) < MAX_ROUNDS):
        for use_mtp, times in seconds.items():
            torch.manual_seed(seed)
            start = time.perf_counter()
            output = generate_after(model, [ids], max_new_tokens, use_mtp, **options)
            outputs[use_mtp] = output, output.sequences[0, len(ids) :].tolist()
            times.append(time.perf_counter() - start)
    ways = {
        use_mtp: Way(tokens, statistics.median(seconds[use_mtp]), _tokens_per_forward(output.get("speculation")))
        for use_mtp, (output, tokens) in outputs.items()
    }
    drafts: SpeculationStatistics = outputs[True][0].speculation
    row = TracedRow("".join(token_texts(ids, tokenizer)), traced_tokens(ids, drafts.trace[0], tokenizer))
    return Generation(
        traced=TracedText([row], drafts),
        plain=ways[False],
        drafted=ways[True],
        is_sampled=temperature is not None,
        note=_note(checkpoint, len(ids), max_new_tokens),
    )


def _tokens_per_forward(drafts: SpeculationStatistics | None) -> float:
    return 1.0 if drafts is None else drafts.tokens_per_forward


def _read_prompt(checkpoint: Checkpoint, prompt: str) -> list[int]:
    """Return the token ids of a prompt. Raise an `InputError` if there are none, or too many."""
    start = start_token_id(checkpoint.tokenizer)
    if not prompt and start is None:
        raise InputError("The prompt is empty, and this model has no token that begins a text: type a prompt.")
    return read_prompts(prompt or [start], checkpoint.model, checkpoint.tokenizer)[0]


def _note(checkpoint: Checkpoint, prompt_length: int, max_new_tokens: int) -> str | None:
    """Return a sentence if the model cannot write as many tokens as wanted."""
    longest = max_positions(checkpoint.model)
    if longest is None or prompt_length + max_new_tokens <= longest:
        return None
    return (
        f"The model reads {longest} tokens, and the prompt has {prompt_length}: the text ends after "
        f"{longest - prompt_length} new tokens."
    )
