"""
A control for the gain of the ensemble: the same heads without looking back.

    python experiments/present_heads.py [options of train_clm.py]

Head n of the usual model predicts the token at t + 1 from the hidden state at t - n. Here it predicts the same token
from the hidden state at t, with the same parameters and, for WDR heads, the same tokens in the conjugate term. What
this model gains over its own next-token prediction is capacity, not looking ahead.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

from ngram_wdr_hf import WDRNgramGPT2LMHeadModel
from ngram_wdr_hf.cli import run_script
from ngram_wdr_hf.decoding.draft_limits import CannotDraft
from ngram_wdr_hf.method.logits import target_embeddings
from ngram_wdr_hf.training import clm
from ngram_wdr_hf.training.new_models import BACKBONES


class PresentHeadsGPT2LMHeadModel(WDRNgramGPT2LMHeadModel):
    """GPT-2 with heads that predict the next token from the present hidden state. For training and evaluation only."""

    def _ngram_predict(self, inputs, *args, **kwargs):
        predictions, fields = super()._ngram_predict(inputs, *args, **kwargs)
        if len(predictions.embeddings) == 1:
            return predictions, fields
        hidden_states, training = predictions.main, predictions.training  # (batch_size, T, d)
        states = hidden_states if training is None else training.scale_gradient(hidden_states)
        length = states.shape[1]
        tokens = target_embeddings(self, inputs["input_ids"])
        embeddings = [hidden_states]
        for n, head in enumerate(self.ngram_heads, start=1):
            # The tokens x[t-n+1..t], for t = n, ..., T - 1.
            neighbors = [] if tokens is None else [tokens[:, n - i : length - i] for i in range(n)]
            embeddings.append(head.predict(states[:, n:], neighbors))
        return replace(predictions, embeddings=embeddings), fields

    def generate(self, *args, **kwargs):
        raise CannotDraft("Heads that predict the next token cannot draft: use them for training and evaluation only.")


def main(arguments: Sequence[str]) -> None:
    BACKBONES["gpt2"] = PresentHeadsGPT2LMHeadModel
    # It cannot generate, and its heads are trained at all positions.
    clm.main([*arguments, "--sample_tokens", "0", "--head_sample_rate", "1"], description=__doc__)


if __name__ == "__main__":
    sys.exit(run_script(main))
