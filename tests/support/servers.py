"""`transformers serve` as a process, and requests to it."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import openai

from tests.support.processes import warm_python

# Seconds to wait for the start of a server, an answer, or the end.
PATIENCE = 120


@dataclass
class Server:
    """A running server: its address, and the file with what it prints."""

    address: str
    log: Path

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.address}/v1", api_key="none", timeout=PATIENCE, max_retries=0)

    def wait(self, process: subprocess.Popen) -> None:
        """Wait until the server answers."""
        deadline = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < deadline and process.poll() is None, self.log.read_text()
            try:
                with urlopen(f"{self.address}/health", timeout=PATIENCE) as answer:
                    assert answer.status == 200
                return
            except URLError:
                time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Server]:
    """
    Run `transformers serve` with these arguments in `folder`, where the package is not, until the end of the `with`
    block. The log is there, too.
    """
    port, log = free_port(), folder / "server.log"
    command = [*warm_python(), "-m", "transformers.cli.transformers", "serve", "--port", str(port), *arguments]
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    server = Server(f"http://localhost:{port}", log)
    try:
        server.wait(process)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
