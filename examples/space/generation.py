"""The model behind the page: loading it, generating with and without drafts, and the comparison of both."""

import statistics
import time
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ngram_wdr_hf.analysis import TracedRow, TracedText
from ngram_wdr_hf.analysis.token_text import token_texts
from ngram_wdr_hf.analysis.traced_text import generate_after, read_prompts, traced_tokens
from ngram_wdr_hf.evaluation.models import max_positions
from ngram_wdr_hf.method.ensemble import Ensemble, describe_ensemble, ensemble_arguments

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
        options = self.model.generation_config.to_dict()
        return self.model.ngram_ensemble(options.get("ensemble_lambda"), options.get("ensemble_weights"))

    def describe(self) -> str:
        """Return a line of Markdown on the model."""
        config = self.model.config
        sizes = [
            sum(weights.numel() for weights in part.parameters()) for part in (self.model, self.model.ngram_heads)
        ]
        return (
            f"`{self.name}`: {config.model_type}, {config.ngram_target} heads, N = {config.ngram_size}, "
            f"{sizes[0] / 1e6:.2f} million parameters, {sizes[1] / 1e6:.2f} million of them in the heads. It reads "
            f"{max_positions(self.model) or 'any number of'} tokens. Its own ensemble: "
            f"{describe_ensemble(self.ensemble) if self.ensemble else 'none'}."
        )


def load(name: str) -> Checkpoint:
    """Load a causal language model with heads that can draft, from a folder or the Hub."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    if not getattr(model, "ngram_heads", None):
        raise ValueError(f"{name} is not a causal model with heads: choose one of `ngram-wdr clm` or `heads`.")
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

    def speed_table(self) -> str:
        """Return the comparison of both ways as Markdown: a table, and what it says in words."""
        plain, drafted = self.plain, self.drafted
        speedup = drafted.tokens_per_second / plain.tokens_per_second
        if speedup >= 1:
            verdict = f"**With drafts, decoding is {speedup:.2f} times as fast.**"
        else:
            verdict = (
                f"**With drafts, decoding is slower here: {speedup:.2f} times as fast as without.** The forward "
                "passes they save cost less than making and checking them: common in small models and in sampling."
            )
        if self.is_sampled:
            sameness = "Both texts are samples of the same distribution, so they differ by chance."
        elif plain.tokens == drafted.tokens:
            sameness = "Both texts are the same, token for token."
        else:
            sameness = "The texts differ: two tokens were equally likely up to rounding, and each way chose another."
        return f"""
| | without drafts | with drafts |
|---|--:|--:|
| tokens per second | {plain.tokens_per_second:.1f} | {drafted.tokens_per_second:.1f} |
| tokens per forward pass | {plain.tokens_per_forward:.2f} | {drafted.tokens_per_forward:.2f} |
| tokens | {len(plain.tokens)} | {len(drafted.tokens)} |
| seconds | {plain.seconds:.2f} | {drafted.seconds:.2f} |

{verdict} {sameness}"""


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
    Continue a prompt with and without drafts, up to the end of the model's positions.

    Args:
        checkpoint ([`Checkpoint`]): The model.
        prompt (`str`): The prompt; if empty, the text begins with the tokenizer's first token, if it has one.
        max_new_tokens (`int`): The maximum number of new tokens.
        ensemble (`Ensemble`): λ or the weights of the ensemble; 0 for none.
        temperature (`float`, *optional*): The temperature of sampling; `None` for greedy search.
        seed (`int`, *optional*, defaults to 0): The seed of sampling.
        always_drafts (`bool`, *optional*, defaults to `False`): Whether the heads draft even where it does not pay.
    """
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if not prompt and start is None:
        raise ValueError("The prompt is empty, and this model has no token that begins a text: type a prompt.")
    (ids,) = read_prompts(prompt or [start], model, tokenizer)
    sampling = {"do_sample": False} if temperature is None else {"do_sample": True, "temperature": temperature}
    drafting = {"draft_threshold": 0.0} if always_drafts else {}
    options = {"num_beams": 1, **ensemble_arguments(ensemble), **sampling, **drafting}
    seconds: dict[bool, list[float]] = {False: [], True: []}
    outputs, begin = {}, time.perf_counter()
    while not outputs or (time.perf_counter() - begin < MIN_SECONDS and len(seconds[True]) < MAX_ROUNDS):
        for use_mtp, times in seconds.items():
            torch.manual_seed(seed)
            start_time = time.perf_counter()
            output = generate_after(model, [ids], max_new_tokens, use_mtp, **options)
            outputs[use_mtp] = output, output.sequences[0, len(ids) :].tolist()
            times.append(time.perf_counter() - start_time)
    (_, plain), (output, drafted) = outputs[False], outputs[True]
    drafts = output.speculation
    row = TracedRow("".join(token_texts(ids, tokenizer)), traced_tokens(ids, drafts.trace[0], tokenizer))
    return Generation(
        TracedText([row], drafts),
        Way(plain, statistics.median(seconds[False]), 1.0),
        Way(drafted, statistics.median(seconds[True]), drafts.mean_acceptance_length),
        is_sampled=temperature is not None,
    )
