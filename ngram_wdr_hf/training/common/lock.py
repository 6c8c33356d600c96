"""A lock on a run's folder, which ends with the process that holds it."""

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TextIO

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from ...data.errors import InputError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

LOCK = ".lock"
# What file systems without locks answer.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """
    Hold the lock on a folder, and create the folder if needed. Raise an `InputError` that says which process holds it,
    if another does. On a file system without locks, print that, and go on without.
    """
    if fcntl is None or (folder.exists() and not folder.is_dir()):
        yield
        return
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    file = _lock(folder)
    try:
        yield
    finally:
        # Removed while it is locked: whoever opened it before will see that it is gone.
        (folder / LOCK).unlink(missing_ok=True)
        file.close()
        _remove_empty(created)


def _lock(folder: Path) -> TextIO:
    """Return the open lock file of a folder; closing it ends the lock."""
    path = folder / LOCK
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read()
            file.close()
            raise InputError(
                f"`--output_dir {folder}` is in use by {_describe(holder)}. Wait for it, or choose another folder."
            ) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                file.close()
                raise
            print(f"`--output_dir {folder}` is on a file system without locks: start no other run in it.")
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            break
        # The last holder has removed it in between.
        file.close()
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"}
    file.truncate(0)
    file.write(json.dumps(holder) + "\n")
    file.flush()
    return file


def _describe(holder: str) -> str:
    """Return who holds a lock, given the contents of its file."""
    try:
        fields = json.loads(holder)
        return f"process {fields['pid']} on {fields['host']} since {fields['since']}"
    except (ValueError, TypeError, KeyError):
        return "another process"


def _remove_empty(folders: list[Path]) -> None:
    """Remove these folders, the innermost first, up to one that is not empty."""
    try:
        for folder in folders:
            folder.rmdir()
    except OSError:
        pass


def lock(folder: Path, locks: ExitStack) -> None:
    """
    Hold the lock on a folder in the first process, until `locks` are closed. If another command has it, raise an
    `InputError` in every process.
    """
    problem = None
    if PartialState().is_main_process:
        try:
            locks.enter_context(locked(folder))
        except InputError as error:
            problem = str(error)
    (problem,) = broadcast_object_list([problem])
    if problem is not None:
        raise InputError(problem)
