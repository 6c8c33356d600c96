"""Files of GLUE's tasks, and tiny checkpoints to fine-tune."""

import random
from functools import cache
from pathlib import Path

import torch
from transformers import BertTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import ngram_wdr_hf as ours
from ngram_wdr_hf.data.tokenizers import train_sentence_tokenizer, train_word_tokenizer
from ngram_wdr_hf.training.glue import GLUE_TASKS
from tests.support.tiny import LLAMA_SIZES, plain_model, tiny_model, tiny_seq2seq

MOODS = {1: ["charming", "moving"], 0: ["bleak", "dull"]}
NEUTRAL_WORDS = ["film", "plot", "actor", "scene", "often"]
WORDS = [*MOODS[1], *MOODS[0], *NEUTRAL_WORDS]
POSITIONS = 32
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": POSITIONS}
SIZES |= {"intermediate_size": 24, "initializer_range": 0.3}
REFORMER_SIZES = {"hidden_size": 16, "feed_forward_size": 24, "num_attention_heads": 2, "attention_head_size": 8}
REFORMER_SIZES |= {"attn_layers": ["local", "local"], "local_attn_chunk_length": 4, "axial_pos_embds": False}
REFORMER_SIZES |= {"initializer_range": 0.3, "hidden_dropout_prob": 0.0, "max_position_embeddings": 64}


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


# Our model class and the sizes of those that `tiny_model` and `tiny_seq2seq` do not make.
CLASSES = {
    "llama": (ours.WDRNgramLlamaForCausalLM, {**LLAMA_SIZES, "initializer_range": 0.3}),
    "reformer": (ours.WDRNgramReformerModelWithLMHead, REFORMER_SIZES),
    "bert": (ours.WDRNgramBertForMaskedLM, SIZES),
    "modernbert": (ours.WDRNgramModernBertForMaskedLM, {**SIZES, "cls_token_id": 2, "sep_token_id": 3}),
}


def tiny_checkpoint(kind: str, folder: Path, **fields) -> PreTrainedModel:
    """Save a model and its tokenizer. Return the model in evaluation mode."""
    tokenizer = tokenizer_for(kind)
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    fields = {"vocab_size": len(tokenizer), **{name: getattr(tokenizer, name) for name in names}, **fields}
    torch.manual_seed(0)
    if kind in CLASSES:
        model_class, sizes = CLASSES[kind]
        fields |= {"pad_token_id": 0} if kind == "reformer" else {}
        model = model_class(model_class.config_class(**{**sizes, **fields}))
    elif kind in ("bart", "t5"):
        model = tiny_seq2seq(kind, **fields, decoder_start_token_id=fields["pad_token_id"])
    else:
        make = plain_model if kind == "plain gpt2" else tiny_model
        # With dropout, a resumed run has to restore the random state.
        model = make(**{"n_positions": POSITIONS, "resid_pdrop": 0.1, **fields})
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model
