r"""
Train and evaluate a translation model with N-gram heads on its decoder.

    python train_nmt.py                                        # English to German from a small grammar, in minutes
    python train_nmt.py --compare                              # compare with plain, bag-of-words and simple N-gram
    python train_nmt.py --preset paper-small --train_source train.en --train_target train.de \
        --validation_source val.en --validation_target val.de --test_source test.en --test_target test.de \
        --output_dir runs/en-de                                # the paper's small Transformer
    python train_nmt.py --dataset_name wmt14 --dataset_config de-en --source_lang en --target_lang de \
        --preset paper-base --output_dir runs/wmt14            # a translation dataset
    python train_nmt.py run.yaml --reverse                     # options from a file, source and target swapped
    python train_nmt.py --do_train false --model_name_or_path runs/en-de               # BLEU of a finished run
    python train_nmt.py --do_train false --model_name_or_path runs/en-de --translate FILE
    accelerate launch --config_file examples/accelerate/multi_gpu.yaml train_nmt.py   # several GPUs

Repeat a command to resume an interrupted run, or with a greater --max_steps to train a finished one further.
"""

import sys
from pathlib import Path

HELP = Path(__file__).parent / "docs" / "options" / "train_nmt.txt"


def main(arguments: list[str]) -> None:
    from ngram_wdr_hf.training.nmt.arguments import parse_nmt_arguments
    from ngram_wdr_hf.training.nmt.run import run_nmt

    run_nmt(parse_nmt_arguments(arguments, __doc__))


if __name__ == "__main__":
    # Before the imports, which take seconds.
    if {"-h", "--help"} & {*sys.argv} and HELP.is_file():
        print(HELP.read_text(encoding="utf-8"), end="")
        sys.exit(0)
    from ngram_wdr_hf.training.common.command_line import run_script

    sys.exit(run_script(main))
