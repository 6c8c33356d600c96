r"""
Train and evaluate a causal language model with N-gram heads.

    python train_clm.py                                        # WDR 4-gram on English text of Python, in minutes
    python train_clm.py --compare                              # compare with the plain and simple N-gram models
    python train_clm.py --preset paper-tf-small --train_file ptb.train.txt --validation_file ptb.valid.txt \
        --test_file ptb.test.txt --output_dir runs/ptb         # the paper's small Transformer
    python train_clm.py --model_name_or_path gpt2 --train_mode heads --dataset_name wikitext \
        --dataset_config wikitext-2-raw-v1 --output_dir runs/heads
    python train_clm.py run.yaml --learning_rate 1e-3          # options from a file, overridden on the command line
    python train_clm.py --do_train false --model_name_or_path runs/clm
    accelerate launch --config_file examples/accelerate/multi_gpu.yaml train_clm.py   # several GPUs

Repeat a command to resume an interrupted run, or with a greater --max_steps to train a finished one further.
"""

import sys
from pathlib import Path

HELP = Path(__file__).parent / "docs" / "options" / "train_clm.txt"


def main(arguments: list[str]) -> None:
    from ngram_wdr_hf.training.clm.arguments import parse_clm_arguments
    from ngram_wdr_hf.training.clm.run import run_clm

    run_clm(parse_clm_arguments(arguments, __doc__))


if __name__ == "__main__":
    # Before the imports, which take seconds.
    if {"-h", "--help"} & {*sys.argv} and HELP.is_file():
        print(HELP.read_text(encoding="utf-8"), end="")
        sys.exit(0)
    from ngram_wdr_hf.training.common.command_line import run_script

    sys.exit(run_script(main))
