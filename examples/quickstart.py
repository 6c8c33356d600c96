"""
Trains a tiny WDR 4-gram model on English that comes with Python, and shows what the ensemble does.

    python examples/quickstart.py              # about 2 minutes on 2 CPU cores, no network

Prints the per-head losses, the perplexity on held-out text for several λ, and a sample with and without the ensemble.
"""

import argparse
import math
import tempfile
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments

from ngram_wdr_hf import WDRNgramConfig, WDRNgramGPT2LMHeadModel

BLOCK = 96
LAMBDAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


def train_tokenizer(text: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=["<eos>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")


def blocks(tokenizer: PreTrainedTokenizerFast, text: str) -> list[dict]:
    ids = torch.tensor(tokenizer(text, verbose=False).input_ids)
    rows = ids[: len(ids) // BLOCK * BLOCK].view(-1, BLOCK)
    return [{"input_ids": row, "labels": row} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="optimizer steps (default: 600)")
    parser.add_argument("--ngram-size", type=int, default=4, help="the paper's N (default: 4)")
    parser.add_argument("--target", choices=("wdr", "simple"), default="wdr", help="what the heads predict")
    parser.add_argument("--output", help="folder to save the trained model in (default: not saved)")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    documents = [topics[name] for name in sorted(topics)]
    training_text = "\n".join(text for i, text in enumerate(documents) if i % 10 != 4)
    held_out_text = "\n".join(documents[4::10])
    tokenizer = train_tokenizer(training_text)
    config = WDRNgramConfig(
        vocab_size=len(tokenizer),
        n_positions=BLOCK,
        n_embd=128,
        n_layer=3,
        n_head=4,
        activation_function="gelu_pytorch_tanh",
        ngram_size=arguments.ngram_size,
        ngram_target=arguments.target,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    model = WDRNgramGPT2LMHeadModel(config)

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            max_steps=arguments.steps,
            per_device_train_batch_size=16,
            learning_rate=1.5e-3,
            lr_scheduler_type="cosine",
            warmup_steps=20,
            logging_steps=100,
            save_strategy="no",
            report_to="none",
        )
        Trainer(model, settings, train_dataset=blocks(tokenizer, training_text)).train()

    held_out = torch.stack([row["input_ids"] for row in blocks(tokenizer, held_out_text)])
    model.eval()
    with torch.no_grad():
        outputs = {value: model(held_out, labels=held_out, ensemble_lambda=value) for value in LAMBDAS}
    names = ["next word", *(f"head {n}" for n in range(1, config.ngram_size))]
    print(
        "\nheld-out NLL    " + "   ".join(f"{n} {v:.2f}" for n, v in zip(names, outputs[0.0].head_losses, strict=True))
    )
    print("λ               " + "".join(f"{value:>8.1f}" for value in LAMBDAS))
    print("perplexity      " + "".join(f"{math.exp(output.loss):>8.2f}" for output in outputs.values()))
    best = min(LAMBDAS, key=lambda value: outputs[value].loss)
    prompt = tokenizer("The statement", return_tensors="pt").input_ids
    for value in (0.0, best) if best else (0.0,):
        torch.manual_seed(0)
        ids = model.generate(prompt, ensemble_lambda=value, do_sample=True, top_p=0.9, max_new_tokens=40)
        print(f"\nλ={value}: {' '.join(tokenizer.decode(ids[0]).split())}")
    if arguments.output:
        model.config.ensemble_lambda = best
        model.save_pretrained(arguments.output)
        tokenizer.save_pretrained(arguments.output)
        print(f"\nSaved with λ={best} in {arguments.output}.")


if __name__ == "__main__":
    main()
