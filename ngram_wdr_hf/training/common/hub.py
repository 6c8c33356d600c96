"""Upload of a finished run to the Hub: model, code, model card and plots."""

from pathlib import Path

from huggingface_hub import create_repo, upload_folder
from transformers import TrainingArguments

from ...data.errors import InputError

# Files of a run's folder that are not uploaded.
IGNORED_FILES = [".*", "training_args.bin", "comparison*"]
# The only subfolder that is uploaded. The others are checkpoints, logs and the models of a comparison.
ADAPTER = "adapter"


def make_repository(training: TrainingArguments) -> str | None:
    """
    Create the repository for `--push_to_hub`, unless it exists, and return its id; `None` without that option. Raise
    an `InputError` if that fails.
    """
    if not training.push_to_hub:
        return None
    name = training.hub_model_id or Path(training.output_dir).absolute().name
    try:
        return create_repo(name, token=training.hub_token, private=training.hub_private_repo, exist_ok=True).repo_id
    except Exception as error:  # no connection, no token, no permission: many classes
        reason = str(error).strip().split("\n")[0]
        raise InputError(
            f"`--push_to_hub` cannot create the repository {name} ({reason}): log in with `hf auth login`, or remove "
            "the option."
        ) from error


def push_run(folder: Path, repository: str, training: TrainingArguments) -> None:
    """Upload the run's folder to the repository, without checkpoints, logs and the models of a comparison."""
    folders = [child.name for child in folder.iterdir() if child.is_dir() and child.name != ADAPTER]
    upload_folder(
        repo_id=repository,
        folder_path=folder,
        token=training.hub_token,
        ignore_patterns=[*IGNORED_FILES, *(f"{name}/*" for name in folders)],
        commit_message="Trained model with N-gram heads",
    )
