"""Files of GLUE's tasks, and tiny checkpoints to fine-tune."""

import random
from functools import cache
from pathlib import Path

from transformers import BertTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ngram_wdr_hf.data.tokenizers import train_sentence_tokenizer, train_word_tokenizer
from ngram_wdr_hf.training.glue import GLUE_TASKS
from tests.support.reformer import tiny_reformer
from tests.support.tiny import make, plain_model, tiny_model

MOODS = {1: ["charming", "moving"], 0: ["bleak", "dull"]}
NEUTRAL_WORDS = ["film", "plot", "actor", "scene", "often"]
WORDS = [*MOODS[1], *MOODS[0], *NEUTRAL_WORDS]


def sentence(mood: int, chance: random.Random) -> str:
    words = chance.choices(NEUTRAL_WORDS, k=chance.randrange(8))
    words.insert(chance.randrange(len(words) + 1), chance.choice(MOODS[mood]))
    return " ".join(words)


def write_tasks(folder: Path) -> str:
    """
    Write the files of all tasks in GLUE's format. The label is the mood of a sentence, or whether two sentences have
    the same mood. For single sentences, the majority class is 0 in training (25 of 49) and 1 in validation (6 of 11).
    """
    for name, task in GLUE_TASKS.items():
        chance = random.Random(name)
        (folder / task.title).mkdir()
        for file, count, first in (("train.tsv", 49, 0), ("dev.tsv", 11, 1)):
            lines = [] if task.columns else ["\t".join([*(["index"] * (name == "rte")), *task.sentences, "label"])]
            for i in range(count):
                moods = [(first + i) % 2, chance.randrange(2)][: len(task.sentences)]
                texts = [sentence(mood, chance) for mood in moods]
                if name == "sst2":
                    lines.append(f"{texts[0]} \t{moods[0]}")
                elif name == "cola":
                    lines.append(f"gj04\t{moods[0]}\t{'' if moods[0] else '*'}\t{texts[0]}")
                else:
                    lines.append(f"{i}\t{texts[0]}\t{texts[1]}\t{task.labels[moods[0] != moods[1]]}")
            (folder / task.title / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder)


@cache
def tokenizer_for(kind: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer for a kind of model. That of causal models has no padding token, as in `train_clm.py`."""
    if kind in ("bart", "t5"):
        return train_sentence_tokenizer([" ".join(WORDS)] * 3, 300)
    if kind in ("bert", "modernbert"):
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        return BertTokenizer(vocab={word: i for i, word in enumerate([*special, *WORDS])})
    return train_word_tokenizer([" ".join(WORDS) + "\n"])


def tiny_checkpoint(kind: str, folder: Path, **fields) -> PreTrainedModel:
    """Save a model and its tokenizer. Return the model in evaluation mode."""
    tokenizer = tokenizer_for(kind)
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    fields = {"vocab_size": len(tokenizer), **{name: getattr(tokenizer, name) for name in names}, **fields}
    if kind == "reformer":
        model = tiny_reformer("local", **{**fields, "pad_token_id": 0})
    elif "gpt2" in kind:
        # With dropout, a resumed run has to restore the random state.
        make_one = plain_model if kind == "plain gpt2" else tiny_model
        model = make_one(**{"n_positions": 32, "resid_pdrop": 0.1, **fields})
    else:
        fields |= {"cls_token_id": 2, "sep_token_id": 3, "decoder_start_token_id": fields["pad_token_id"]}
        model = make(kind, **fields)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model
