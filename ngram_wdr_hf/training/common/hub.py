"""Push a finished run to the Hub: the model, its code, its card and its plots."""

from pathlib import Path

from huggingface_hub import create_repo, upload_folder
from transformers import TrainingArguments

from ...data.errors import InputError

# Not pushed: checkpoints to resume from, the compared models, logs.
LEFT_OUT = ["checkpoint-*/*", "plain/*", "bow/*", "simple/*", "wdr/*", "runs/*", "training_args.bin", "comparison*"]


def make_repository(training: TrainingArguments) -> str | None:
    """Create the repository that the run will be pushed to; `None` if it is not pushed."""
    if not training.push_to_hub:
        return None
    name = training.hub_model_id or Path(training.output_dir).absolute().name
    try:
        return create_repo(name, token=training.hub_token, private=training.hub_private_repo, exist_ok=True).repo_id
    except Exception as error:  # no connection, no token, no right to: the classes are many
        reason = str(error).strip().split("\n")[0]
        raise InputError(
            f"The repository {name} cannot be made on the Hub ({reason}): log in, or leave out `--push_to_hub`."
        ) from error


def push_run(folder: Path, repository: str, training: TrainingArguments) -> None:
    """Upload the run's folder."""
    upload_folder(
        repo_id=repository,
        folder_path=folder,
        token=training.hub_token,
        ignore_patterns=LEFT_OUT,
        commit_message="A trained model with N-gram heads",
    )
