r"""
Fine-tune a checkpoint, with or without N-gram heads, on SST-2, CoLA and RTE, three tasks of GLUE.

    python finetune_glue.py --model_name_or_path runs/clm --task sst2 --train_file SST-2/train.tsv \
        --validation_file SST-2/dev.tsv
    python finetune_glue.py --model_name_or_path runs/clm --task sst2 cola rte --data_dir GLUE --seeds 1 2 3 4 5
    python finetune_glue.py --model_name_or_path runs/clm --task cola --dataset_name glue --output_dir runs/cola
    accelerate launch --config_file examples/accelerate/multi_gpu.yaml finetune_glue.py ...   # several GPUs

The result is a stock model of Transformers, without N-gram heads. Repeat a command to resume interrupted runs, or to
print the results of finished ones.
"""

import sys
from pathlib import Path

HELP = Path(__file__).parent / "docs" / "options" / "finetune_glue.txt"


def main(arguments: list[str]) -> None:
    from ngram_wdr_hf.training.glue.arguments import parse_glue_arguments
    from ngram_wdr_hf.training.glue.run import run_glue

    run_glue(parse_glue_arguments(arguments, __doc__))


if __name__ == "__main__":
    # Before the imports, which take seconds.
    if {"-h", "--help"} & {*sys.argv} and HELP.is_file():
        print(HELP.read_text(encoding="utf-8"), end="")
        sys.exit(0)
    from ngram_wdr_hf.training.common.command_line import run_script

    sys.exit(run_script(main))
