r"""
Fine-tune a checkpoint, with or without N-gram heads, on SST-2, CoLA and RTE, three tasks of GLUE.

    ngram-wdr glue --model_name_or_path runs/clm --task sst2 --train_file SST-2/train.tsv \
        --validation_file SST-2/dev.tsv
    ngram-wdr glue --model_name_or_path runs/clm --task sst2 cola rte --data_dir GLUE --seeds 1 2 3 4 5
    ngram-wdr glue --model_name_or_path runs/clm --task cola --dataset_name glue --output_dir runs/cola
    accelerate launch --multi_gpu -m ngram_wdr_hf glue ...   # several GPUs

The result is a stock model of Transformers, without N-gram heads. Repeat a command to resume interrupted runs, or to
print the results of finished ones.
In a checkout of the project, `python finetune_glue.py` is the same command.
"""

from collections.abc import Sequence

from ..training.glue.arguments import parse_glue_arguments
from ..training.glue.run import run_glue


def main(arguments: Sequence[str]) -> None:
    run_glue(parse_glue_arguments(arguments, __doc__))
