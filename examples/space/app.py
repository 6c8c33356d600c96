"""
A Gradio page for a language model with N-gram heads: a text coloured by the source of each token, sliders for the
ensemble, and the speed with and without drafts.

    python examples/space/app.py runs/clm

The argument is a folder made by `train_clm.py`, or a name on the Hub. `README.md` in this folder says how to push the
page to a Hugging Face Space.
"""

import argparse
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import gradio as gr
from generation import Checkpoint, generate, load
from transformers.utils import logging

from ngram_wdr_hf.evaluation.models import max_positions
from ngram_wdr_hf.method.ensemble import Ensemble, is_lambda, weights_of

# The checkpoint of a Space: the value of this variable, a folder or a name on the Hub, or else this folder.
MODEL_VARIABLE = "NGRAM_WDR_MODEL"
MODEL_FOLDER = Path(__file__).parent / "model"

TITLE = "N-gram and WDR heads"
INTRODUCTION = """# N-gram and WDR heads
Small heads on a language model predict the tokens after the next one. Their earlier predictions improve the next token
(the ensemble), and their drafts, checked by the model, save forward passes (speculative decoding)."""
# Fonts of the system: the page loads nothing from other hosts.
THEME = gr.themes.Default(
    primary_hue="indigo",
    font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"],
    font_mono=["ui-monospace", "Consolas", "monospace"],
)
# The coloured text follows `color-scheme`, which Gradio does not set.
STYLE = """
:root { color-scheme: light; }
:root:has(body.dark) { color-scheme: dark; }
.gradio-container .traced { background: none; }
#text .html-container { padding: 0; }
#speed :is(th, td) { border-color: var(--border-color-primary); padding: .3rem .6rem; }
#speed :is(th, td):not(:first-child) { text-align: right; }
"""
# Without a second server for rendering, which Spaces start by default.
LAUNCH = {"theme": THEME, "css": STYLE, "ssr_mode": False, "footer_links": ["api", "gradio", "settings"]}
PLACEHOLDER = "Type a prompt, and press the button."
GREEDY, SAMPLING = "greedy", "sampling"
WEIGHTS, LAMBDA, NONE = "weights", "λ", "none"
MAX_NEW_TOKENS, DEFAULT_NEW_TOKENS = 512, 64
# What the sliders of a model without an ensemble begin with.
DEFAULT_LAMBDA = 0.3


def ensemble_of(choice: str, ensemble_lambda: float, weights: tuple[float, ...]) -> Ensemble:
    """Return the ensemble that the sliders describe; 0 for none."""
    return {WEIGHTS: weights, LAMBDA: ensemble_lambda, NONE: 0.0}[choice]


def answer(checkpoint: Checkpoint) -> Callable[..., tuple[str, str]]:
    """Return the function behind the button: from the values of the components to text and speed."""

    def respond(
        prompt: str,
        max_new_tokens: int,
        decoding: str,
        temperature: float,
        always_drafts: bool,
        choice: str,
        ensemble_lambda: float,
        *weights: float,
    ) -> tuple[str, str]:
        if None in (max_new_tokens, temperature, ensemble_lambda, *weights):
            raise gr.Error("The number of a slider is empty: type one.", print_exception=False)
        ensemble = ensemble_of(choice, ensemble_lambda, weights)
        wanted, seed = temperature if decoding == SAMPLING else None, random.getrandbits(32)
        try:
            found = generate(checkpoint, prompt, int(max_new_tokens), ensemble, wanted, seed, always_drafts)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from error
        return found.traced.fragment(), found.speed_table()

    return respond


def build(name: str) -> gr.Blocks:
    """Return the page for a checkpoint; if it cannot be used, a page that says why."""
    with gr.Blocks(title=TITLE, analytics_enabled=False) as page:
        gr.Markdown(INTRODUCTION)
        try:
            checkpoint = load(name)
        except (ValueError, OSError) as error:
            reason = str(error).split("\n")[0]
            print(f"error: {reason}", file=sys.stderr)
            gr.Markdown(f"**This page has no model to show.** {reason}", elem_id="error")
        else:
            add_components(checkpoint)
    return page


def add_components(checkpoint: Checkpoint) -> None:
    """Add the components to the page, and what they do."""
    gr.Markdown(checkpoint.describe())
    with gr.Row():
        with gr.Column(scale=2):
            prompt = gr.Textbox(label="Prompt", lines=4, placeholder="The text to continue", elem_id="prompt")
            button = gr.Button("Continue the text", variant="primary", elem_id="continue")
            decoding = add_decoding(checkpoint)
            ensemble = add_ensemble(checkpoint)
        with gr.Column(scale=3):
            gr.Markdown("### The continuation, by source")
            text = gr.HTML(PLACEHOLDER, apply_default_css=False, elem_id="text")
            gr.Markdown("### Speed with and without drafts")
            speed = gr.Markdown(elem_id="speed")
    gr.on(
        [button.click, prompt.submit],
        answer(checkpoint),
        inputs=[prompt, *decoding, *ensemble],
        outputs=[text, speed],
        api_name="continue",
    )


def add_decoding(checkpoint: Checkpoint) -> list[gr.components.Component]:
    """Add the options of decoding. Return the components: length, greedy or sampling, temperature, drafts."""
    longest = min(MAX_NEW_TOKENS, (max_positions(checkpoint.model) or MAX_NEW_TOKENS + 1) - 1)
    with gr.Group():
        length = gr.Slider(1, longest, min(DEFAULT_NEW_TOKENS, longest), step=1, label="New tokens, at most")
        choice = gr.Radio([GREEDY, SAMPLING], value=GREEDY, label="Decoding", elem_id="decoding")
        temperature = gr.Slider(0.1, 2.0, 0.8, step=0.05, label="Temperature", visible=False)
        drafts = gr.Checkbox(label="Let the heads draft at every step, even where it does not pay")
    choice.change(lambda chosen: gr.update(visible=chosen == SAMPLING), choice, temperature, api_visibility="private")
    return [length, choice, temperature, drafts]


def add_ensemble(checkpoint: Checkpoint) -> list[gr.components.Component]:
    """Add the sliders of the ensemble, as the checkpoint has it. Return the components: choice, λ, the N weights."""
    ensemble = checkpoint.ensemble
    own_lambda = ensemble if ensemble and is_lambda(ensemble) else DEFAULT_LAMBDA
    own_weights = weights_of(own_lambda if is_lambda(ensemble) else ensemble, checkpoint.model.config.ngram_size)
    own = (LAMBDA if ensemble else NONE) if is_lambda(ensemble) else WEIGHTS
    with gr.Group():
        choice = gr.Radio([WEIGHTS, LAMBDA, NONE], value=own, label="Ensemble", elem_id="ensemble")
        label = "λ, the share of the heads"
        sliders = [gr.Slider(0.0, 1.0, own_lambda, step=0.01, label=label, visible=own == LAMBDA)]
        for depth, weight in enumerate(own_weights):
            label = f"w{depth}, {f'head {depth}' if depth else 'the model'}"
            lowest, highest = min(-0.5, weight), max(1.5, weight)
            value = round(weight, 3)
            sliders.append(gr.Slider(lowest, highest, value, step=0.001, label=label, visible=own == WEIGHTS))

    def show(chosen: str) -> list[dict]:
        return [gr.update(visible=chosen == LAMBDA), *[gr.update(visible=chosen == WEIGHTS)] * len(own_weights)]

    choice.change(show, choice, sliders, api_visibility="private")
    return [choice, *sliders]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get(MODEL_VARIABLE, str(MODEL_FOLDER))
    parser.add_argument("model", nargs="?", default=default, help="folder or name on the Hub (default: %(default)s)")
    parser.add_argument("--port", type=int, help="port of the server (default: the first free one from 7860)")
    options = parser.parse_args(arguments)
    logging.disable_progress_bar()
    build(options.model).launch(server_port=options.port, **LAUNCH)


if __name__ == "__main__":
    main(sys.argv[1:])
