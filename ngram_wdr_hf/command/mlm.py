r"""
Train and evaluate a masked language model (BERT or ModernBERT) with WDR heads at its masked words.

    ngram-wdr mlm                                              # 2-level WDR on the texts of Python's help, in minutes
    ngram-wdr mlm --compare                                    # compare with the plain model and `masked` composition
    ngram-wdr mlm --train_file wiki.train.tokens --validation_file wiki.valid.tokens --masking span \
        --wdr_compose masked --output_dir runs/spans           # masked spans, differences of masked words only
    ngram-wdr mlm --preset crammed --dataset_name wikimedia/wikipedia --dataset_config 20231101.en --streaming \
        --output_dir runs/crammed                              # like CrammedBERT, 18,750 steps
    ngram-wdr mlm --do_train false --model_name_or_path runs/mlm
    accelerate launch --multi_gpu -m ngram_wdr_hf mlm   # several GPUs

Repeat a command to resume an interrupted run, or with a greater --max_steps to train a finished one further.
`ngram-wdr glue` fine-tunes the result.
In a checkout of the project, `python train_mlm.py` is the same command.
"""

from collections.abc import Sequence

from ..training.mlm.arguments import parse_mlm_arguments
from ..training.mlm.run import run_mlm


def main(arguments: Sequence[str]) -> None:
    run_mlm(parse_mlm_arguments(arguments, __doc__))
