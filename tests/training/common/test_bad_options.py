"""Bad options of the scripts: one line that names the option, exit code 2, and nothing written or trained."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import Trainer

from ngram_wdr_hf.analysis.__main__ import main as analyze
from ngram_wdr_hf.training.common.command_line import run_script
from tests.support import clm_runs, glue_runs, mlm_runs, nmt_runs
from tests.support.errors import assert_names
from tests.support.scripts import contents, one_sentence

SCRIPTS: dict[str, Callable[..., object]] = {
    "clm": clm_runs.run,
    "nmt": nmt_runs.run,
    "mlm": mlm_runs.run,
    "glue": glue_runs.run,
    "analysis": lambda *arguments: analyze(arguments),
}
# Options that are the same in all scripts.
TRAINER = """
--adam_beta1 1
--adam_beta2 -0.1
--adam_epsilon -1
--adam_epsilon nan
--data_seed -1
--dataloader_num_workers -1
--dataloader_num_workers many
--dataloader_prefetch_factor 0
--ddp_bucket_cap_mb 0
--ddp_timeout 0
--eval_accumulation_steps 0
--eval_delay -1
--eval_steps 0
--eval_steps -1
--eval_steps nan
--gradient_accumulation_steps 0
--gradient_accumulation_steps -1
--gradient_accumulation_steps 1.5
--learning_rate 0
--learning_rate -1
--learning_rate nan
--learning_rate inf
--learning_rate fast
--logging_steps 0
--logging_steps -1
--logging_steps nan
--max_grad_norm -1
--max_grad_norm nan
--max_steps 0
--max_steps -2
--max_steps 1.5
--max_steps 9999999999999
--max_steps
--neftune_noise_alpha -1
--num_train_epochs 0
--num_train_epochs -1
--num_train_epochs nan
--num_train_epochs inf
--save_steps 0
--save_steps -1
--save_total_limit -1
--seed -1
--seed 4294967296
--seed 1.5
--torch_empty_cache_steps 0
--warmup_steps -1
--warmup_steps nan
--weight_decay -1
--weight_decay nan
--logging_strategy always
--lr_scheduler_type steep
--lr_scheduler_kwargs much
--lr_scheduler_kwargs '{"steep"'
--lr_scheduler_kwargs '[1]'
--lr_scheduler_kwargs '{"steepness": 1}'
--save_strategy sometimes
--optim fast
--optim_args much
--report_to nobody
--log_level loud
--accelerator_config none.json
--fsdp_config none.json
--deepspeed none.json
--hub_strategy never
--train_sampling_strategy alphabetic
--disable_tqdm perhaps
--output_dir file.txt
--output_dir file.txt/run
--output_dir ''
--run_name ''
"""
BATCHES = """
--per_device_train_batch_size 0
--per_device_train_batch_size -1
--per_device_train_batch_size 99999999999999999999999
--per_device_eval_batch_size 0
--per_device_eval_batch_size -1
"""
TEXT = """
--train_file none.txt
--train_file folder
--train_file binary.txt
--train_file empty.txt
--train_file cut.gz
--train_file ''
--validation_file none.txt
--validation_file binary.txt
--test_file none.txt
--test_file folder
--dataset_name wikitext
--block_size 0
--block_size -1
--block_size 99999999999999999999999
--num_workers 0
--shuffle_buffer -1
--shuffle_buffer 2.5
--validation_percentage 0
--validation_percentage 100
--validation_percentage nan
--vocab_size 0
--vocab_size -1
--vocab_size many
--tokenizer none.txt
--tokenizer ''
--streaming perhaps
"""
MODEL = """
--preset huge
--model_name_or_path none.txt
--model_name_or_path folder
--model_name_or_path ''
--ngram_size 0
--ngram_size -1
--ngram_size two
--ngram_target words
--label_smoothing -0.1
--label_smoothing 1.1
--label_smoothing nan
--recipe cheap
--head_gradient -0.1
--head_gradient 1.1
--head_gradient nan
--head_loss_weight 0
--head_loss_weight inf
--head_loss_decay 0
--head_loss_decay 1.1
--head_sample_rate 0
--head_sample_rate 1.1
--head_sample_rate -0.5
--head_loss_schedule cosine
--ngram_head_reads words
--ngram_head_expansion 0
--config_overrides 3
--config_overrides layers=3
--config_overrides [=]
--config_overrides attention_dropout=[
--train_mode some
--train_mode heads
--lora_rank 0
--patience 0
--gradient_diversity_steps 0
--metric_for_best_model meteor
--label_smoothing_factor 0.1
--eval_strategy sometimes
"""
GENERATION = """
--head_loss_tokens some
--head_loss_tokens draft
--draft_vocab_size 0
--lambda_grid -0.1
--lambda_grid 1.1
--lambda_grid nan
--lambda_grid 0 much
--lambda_grid
--ensemble mean
--ensemble fitted --ngram_target none
--ensemble fitted --ngram_size 1
"""
BAD = {
    "clm": f"""{TRAINER}{BATCHES}{TEXT}{MODEL}{GENERATION}
--ngram_size 99999999999
--draft_vocab_size 100000
--stride 0
--sample_tokens -1
--prompt ''
--vocab_size 2
--lerning_rate 1
--lerning-rate=1
--max_step 3
--no_such_option 3
""",
    "nmt": f"""{MODEL}{GENERATION}{BATCHES}
--train_source none.txt
--train_source folder
--train_source binary.txt
--train_source empty.txt
--train_source cut.gz
--train_target none.txt
--validation_source folder
--test_source none.txt
--train_file file.txt
--dataset_name wmt14
--validation_percentage -1
--validation_percentage nan
--max_length 1
--max_length_ratio 0.5
--max_length_ratio nan
--max_length_ratio inf
--batch_tokens 0
--batch_tokens nan
--bow_loss_weight -1
--bow_loss_weight nan
--num_beams 0
--length_penalty nan
--length_penalty inf
--length_penalty long
--num_examples -1
--translate none.txt
--translate_to folder --translate file.txt --do_train false --model_name_or_path model
--tokenizer ''
--vocab_size 100
--num_bems 3
""",
    "mlm": f"""{TEXT}{MODEL}{BATCHES}
--masking words
--mlm_probability 0
--mlm_probability 1
--mlm_probability nan
--wdr_compose some
--num_examples -1
--ensemble fitted
--block_size 2
--vocab_size 100
--lambda_grid 0
--mask 3
""",
    "glue": f"""{BATCHES}
--learning_rate nan
--num_train_epochs -1
--max_steps 0
--seed -1
--seeds -1
--seeds 1 two
--seeds 4294967296
--optim_args much
--report_to nobody
--warmup_steps -1
--lr_scheduler_type steep
--logging_strategy always
--max_length 0
--max_length 9999
--task mnli
--data_dir none.txt
--data_dir ''
--model_name_or_path none.txt
--model_name_or_path folder
--eval_strategy steps
--do_train false
--output_dir file.txt/run
--tasks sst2
""",
    "analysis": """
--max_tokens 1
--max_tokens many
--split train
--output ''
--outptu x.html
""",
}
# What the line names, where it is not the option.
NAMED = {
    "--lerning_rate 1": "`--learning_rate`",
    "--lerning-rate=1": "`--learning_rate`",
    "--max_step 3": "`--max_steps`",
    "--num_bems 3": "`--num_beams`",
    "--mask 3": "`--masking`",
    "--tasks sst2": "`--task`",
    "--outptu x.html": "`--output`",
    "--translate none.txt": "`--translate`",
}
BAD_FILES = ("none.txt", "folder", "binary.txt", "empty.txt", "cut.gz")
CASES = [(script, line) for script, lines in BAD.items() for line in lines.split("\n") if line]


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    """A folder with good and bad files."""
    folder = tmp_path_factory.mktemp("bad_options")
    (folder / "folder").mkdir()
    (folder / "folder" / "notes.md").write_text("...")
    (folder / "binary.txt").write_bytes(bytes(range(256)))
    (folder / "empty.txt").touch()
    (folder / "cut.gz").write_bytes(b"\x1f\x8b\x08\x00cut")
    (folder / "file.txt").write_text("...")
    glue_runs.write_task(folder / "glue", "sst2")
    glue_runs.tiny_checkpoint("gpt2", folder / "model")
    return folder


@pytest.fixture(scope="module")
def commands(here, files, pairs) -> dict[str, list[str]]:
    """A good command for every script."""
    return {
        "clm": [*files, *clm_runs.QUICK],
        "nmt": [*pairs, *nmt_runs.QUICK],
        "mlm": [*files, *mlm_runs.QUICK],
        "glue": ["--model_name_or_path", "model", "--task", "sst2", "--data_dir", "glue", *glue_runs.QUICK],
        "analysis": ["model"],
    }


@pytest.mark.parametrize(("script", "line"), CASES)
def test_bad_options(script, line, commands, here, monkeypatch, capsys):
    monkeypatch.chdir(here)
    monkeypatch.setattr(Trainer, "train", lambda *args, **kwargs: pytest.fail("trained"))
    option, *values = shlex.split(line)
    before = contents(here)
    assert run_script(lambda arguments: SCRIPTS[script](*arguments), [*commands[script], option, *values]) == 2
    file = next((value for value in values if value in BAD_FILES), None)
    assert_names(one_sentence(capsys.readouterr().err), NAMED.get(line, file or f"`{option}"))
    assert contents(here) == before
