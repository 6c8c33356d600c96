r"""
Train and evaluate a translation model with N-gram heads on its decoder.

    ngram-wdr nmt                                              # English to German dates and amounts, in minutes
    ngram-wdr nmt --compare                                    # compare with plain, bag-of-words and simple N-gram
    ngram-wdr nmt --preset paper-small --train_source train.en --train_target train.de \
        --validation_source val.en --validation_target val.de --test_source test.en --test_target test.de \
        --output_dir runs/en-de                                # the paper's small Transformer
    ngram-wdr nmt --dataset_name wmt14 --dataset_config de-en --source_lang en --target_lang de \
        --preset paper-base --output_dir runs/wmt14            # a translation dataset
    ngram-wdr nmt run.yaml --reverse                           # options from a file, source and target swapped
    ngram-wdr nmt --do_train false --model_name_or_path runs/en-de      # BLEU of a finished run
    ngram-wdr nmt --do_train false --model_name_or_path runs/en-de --translate FILE
    accelerate launch --multi_gpu -m ngram_wdr_hf nmt   # several GPUs

Repeat a command to resume an interrupted run, or with a greater --max_steps to train a finished one further.
In a checkout of the project, `python train_nmt.py` is the same command.
"""

from collections.abc import Sequence

from ..training.nmt.arguments import parse_nmt_arguments
from ..training.nmt.run import run_nmt


def main(arguments: Sequence[str]) -> None:
    run_nmt(parse_nmt_arguments(arguments, __doc__))
