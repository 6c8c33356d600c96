r"""
Train and evaluate a causal language model with N-gram heads.

    ngram-wdr clm                                              # WDR 4-gram on the texts of Python's help, in minutes
    ngram-wdr clm --compare                                    # compare with the plain and simple N-gram models
    ngram-wdr clm --preset paper-tf-small --train_file ptb.train.txt --validation_file ptb.valid.txt \
        --test_file ptb.test.txt --output_dir runs/ptb         # the paper's small Transformer
    ngram-wdr clm --model_name_or_path gpt2 --train_mode heads --dataset_name wikitext \
        --dataset_config wikitext-2-raw-v1 --output_dir runs/heads
    ngram-wdr clm run.yaml --learning_rate 1e-3                # options from a file, overridden on the command line
    ngram-wdr clm --do_train false --model_name_or_path runs/clm
    accelerate launch --multi_gpu -m ngram_wdr_hf clm   # several GPUs

Repeat a command to resume an interrupted run, or with a greater --max_steps to train a finished one further.
In a checkout of the project, `python train_clm.py` is the same command.
"""

from collections.abc import Sequence

from ..training.clm.arguments import parse_clm_arguments
from ..training.clm.run import run_clm


def main(arguments: Sequence[str]) -> None:
    run_clm(parse_clm_arguments(arguments, __doc__))
