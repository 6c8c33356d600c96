r"""
Train and evaluate a masked language model (BERT or ModernBERT) with WDR heads at its masked words.

    python train_mlm.py                                        # 2-level WDR on English text of Python, in minutes
    python train_mlm.py --compare                              # compare with the plain model and `masked` composition
    python train_mlm.py --train_file wiki.train.tokens --validation_file wiki.valid.tokens --masking span \
        --wdr_compose masked --output_dir runs/spans           # masked spans, differences of masked words only
    python train_mlm.py --preset crammed --dataset_name wikimedia/wikipedia --dataset_config 20231101.en --streaming \
        --output_dir runs/crammed                              # CrammedBERT, with its budget of a day on one GPU
    python train_mlm.py --do_train false --model_name_or_path runs/mlm
    accelerate launch --config_file examples/accelerate/multi_gpu.yaml train_mlm.py   # several GPUs

Repeat a command to resume an interrupted run, or with a greater --max_steps to train a finished one further.
`finetune_glue.py` fine-tunes the result.
"""

import sys
from pathlib import Path

HELP = Path(__file__).parent / "docs" / "options" / "train_mlm.txt"


def main(arguments: list[str]) -> None:
    from ngram_wdr_hf.training.mlm.arguments import parse_mlm_arguments
    from ngram_wdr_hf.training.mlm.run import run_mlm

    run_mlm(parse_mlm_arguments(arguments, __doc__))


if __name__ == "__main__":
    # Before the imports, which take seconds.
    if {"-h", "--help"} & {*sys.argv} and HELP.is_file():
        print(HELP.read_text(encoding="utf-8"), end="")
        sys.exit(0)
    from ngram_wdr_hf.training.common.command_line import run_script

    sys.exit(run_script(main))
