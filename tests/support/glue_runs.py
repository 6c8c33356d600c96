"""Small runs of `finetune_glue.py`, the files for them, and tiny checkpoints to fine-tune."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import BertTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import ngram_wdr_hf as ours
from ngram_wdr_hf.data.tokenizers import train_sentence_tokenizer, train_word_tokenizer
from ngram_wdr_hf.training.glue import GLUE_TASKS, main
from tests.support.backbones import LLAMA_SIZES, REFORMER_SIZES
from tests.support.tiny import plain_model, tiny_model, tiny_seq2seq

MOODS = {1: ["charming", "moving"], 0: ["bleak", "dull"]}
NEUTRAL_WORDS = ["film", "plot", "actor", "scene", "often"]
WORDS = [*MOODS[1], *MOODS[0], *NEUTRAL_WORDS]
POSITIONS = 32
BERT_SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.3,
}
QUICK = ["--num_train_epochs", "2", "--per_device_train_batch_size", "8", "--learning_rate", "1e-2"]
QUICK += ["--disable_tqdm", "true"]


def run(*arguments: str) -> list[dict[str, Any]]:
    return main(arguments)


def sentence(mood: int, chance: random.Random) -> str:
    words = chance.choices(NEUTRAL_WORDS, k=chance.randrange(8))
    words.insert(chance.randrange(len(words) + 1), chance.choice(MOODS[mood]))
    return " ".join(words)


def write_task(folder: Path, name: str) -> None:
    """
    Write a task's files in GLUE's format. The label is the mood of a sentence, or whether two sentences have the same
    mood. For single sentences, the majority class is 0 in training (25 of 49) and 1 in validation (6 of 11).
    """
    task, chance = GLUE_TASKS[name], random.Random(name)
    (folder / task.title).mkdir(parents=True, exist_ok=True)
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
    torch.manual_seed(0)
    if kind in ("bart", "t5", "marian"):
        model = tiny_seq2seq(kind, **fields, decoder_start_token_id=fields["pad_token_id"])
    elif kind == "llama":
        model = ours.WDRNgramLlamaForCausalLM(ours.WDRNgramLlamaConfig(**{**LLAMA_SIZES, **fields}))
    elif kind == "reformer":
        fields = {**REFORMER_SIZES, **fields, "pad_token_id": 0}
        model = ours.WDRNgramReformerModelWithLMHead(ours.WDRNgramReformerConfig(**fields))
    elif kind == "bert":
        model = ours.WDRNgramBertForMaskedLM(ours.WDRNgramBertConfig(**{**BERT_SIZES, **fields}))
    elif kind == "modernbert":
        fields |= {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
        model = ours.WDRNgramModernBertForMaskedLM(ours.WDRNgramModernBertConfig(**{**BERT_SIZES, **fields}))
    else:
        make = plain_model if kind == "plain gpt2" else tiny_model
        # With dropout, a resumed run has to restore the random state.
        model = make(**{"n_positions": POSITIONS, "resid_pdrop": 0.1, **fields})
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model
