"""What is known to go wrong outside the program, in one sentence each."""

import errno
from pickle import UnpicklingError

import torch
from datasets.exceptions import DatasetGenerationError
from safetensors import SafetensorError

from ...data.errors import DAMAGED

# Errors of the operating system, as the end of a sentence about a file.
SYSTEM_REASONS = {
    errno.EACCES: "must not be used by this user. Change its permissions, or choose another path.",
    errno.EDQUOT: "does not fit into this user's disk quota. Make room, and repeat the command.",
    errno.EFBIG: "exceeds the limit on the size of files. Raise it (`ulimit -f`), and repeat the command.",
    errno.EEXIST: "exists already and is in the way. Choose another path.",
    errno.EISDIR: "is a folder. Choose a file.",
    errno.ELOOP: "is a link that leads to itself. Choose another path.",
    errno.ENAMETOOLONG: "has too long a name. Choose a shorter one.",
    errno.ENOENT: "does not exist. Check the path.",
    errno.ENOSPC: "cannot be written, as the disk is full. Make room, and repeat the command.",
    errno.ENOTDIR: "is in a folder that is a file. Check the path.",
    errno.EPERM: "must not be used by this user. Change its permissions, or choose another path.",
    errno.EROFS: "is on a read-only disk. Choose another path.",
}

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_disk_full(error: BaseException) -> bool:
    """Return whether a file could not be written because of a full disk, or a limit on the size of files."""
    if isinstance(error, OSError):
        return error.errno in DISK_FULL
    if isinstance(error, SafetensorError):
        return any(f"(os error {number})" in str(error) for number in DISK_FULL)
    # `torch.save` does not say why it could not write.
    return isinstance(error, RuntimeError) and any(name in str(error) for name in ("StreamWriter", "inline_container"))


def reason_outside(error: BaseException) -> str | None:
    """Return what went wrong outside the program, and what to do about it; `None` for an error of the program."""
    if isinstance(error, DatasetGenerationError) and error.__cause__ is not None:
        return reason_outside(error.__cause__)
    if is_disk_full(error) and not isinstance(error, OSError):
        return f"A file cannot be written ({error}). If the disk is full, make room, and repeat the command."
    if isinstance(error, (*DAMAGED, SafetensorError, UnpicklingError)):
        return f"A file is damaged or has another format ({error}). Replace it."
    if isinstance(error, OSError):
        return str(error) if error.errno is None else _system_reason(error)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or _is_about_memory(error):
        first_line = str(error).strip().split("\n")[0]
        return (
            f"The memory does not suffice ({first_line}). Reduce `--per_device_train_batch_size`, `--batch_tokens`, "
            "`--block_size` or the size of the model."
        )
    return None


def _is_about_memory(error: BaseException) -> bool:
    """Return whether torch could not allocate main memory, for which it has no class of errors."""
    phrases = ("can't allocate memory", "not enough memory", "Storage size calculation overflowed")
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in phrases)


def _system_reason(error: OSError) -> str:
    """Return the sentence about an error of the operating system, with the file if it has one."""
    file = f"`{error.filename2 or error.filename}`" if error.filename is not None else "A file"
    return f"{file} {SYSTEM_REASONS.get(error.errno, f'cannot be used: {error.strerror}.')}"
