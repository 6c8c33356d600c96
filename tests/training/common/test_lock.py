"""Two commands in one folder."""

import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys

import pytest

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.training.common.lock import LOCK, locked
from tests.support.clm_runs import QUICK, run
from tests.support.errors import raises_naming

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "a+")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(600)
"""


def test_the_second_run_names_the_first(finished_clm, files, tmp_path):
    folder = tmp_path / "run"
    names = (f"`--output_dir {folder}`", str(os.getpid()), socket.gethostname())
    with locked(folder), raises_naming(InputError, *names):
        run(*files, *QUICK, "--output_dir", str(folder))
    assert not folder.exists()
    # A comparison works in subfolders as well.
    shutil.copytree(finished_clm.folder, folder)
    with locked(folder / "plain"), raises_naming(InputError, f"`--output_dir {folder / 'plain'}`"):
        run(*finished_clm.command, "--output_dir", str(folder), "--compare")
    assert not list(folder.rglob(LOCK))


def test_the_lock_ends_with_its_process(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path / LOCK], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"locked\n"
        with raises_naming(InputError, f"`--output_dir {tmp_path}`"), locked(tmp_path):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with locked(tmp_path):
        assert (tmp_path / LOCK).stat().st_size > 0
    assert not any(tmp_path.iterdir())


def test_file_system_without_locks(tmp_path, monkeypatch, capsys):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "a" / "b"):
        assert f"`--output_dir {tmp_path / 'a' / 'b'}`" in capsys.readouterr().out
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("damaged", ["", "null", "{}", "\0"])
def test_damaged_lock_file(tmp_path, damaged):
    (tmp_path / LOCK).write_text(damaged)
    with locked(tmp_path), raises_naming(InputError, str(os.getpid())), locked(tmp_path):
        pass
