"""
The parent of warm processes, see `warm_python`: a script that listens at the address in its argument, does the
imports, and forks a process for every request. It ends with its standard input.
"""

import gc
import importlib
import json
import multiprocessing
import os
import runpy
import socket
import sys
from contextlib import suppress
from multiprocessing.connection import wait
from types import ModuleType

# Not Transformers' Trainer, which asks while it is imported whether it is in a notebook.
IMPORTS = ["transformers.models.auto.modeling_auto", "transformers.training_args", "accelerate", "datasets"]


def receive(connection: socket.socket) -> tuple[dict, list[int]]:
    """Return a request, and the standard output and error for it."""
    message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    while not message.endswith(b"\n"):
        message += connection.recv(1 << 20)
    return json.loads(message), streams


def execute(request: dict, streams: list[int]) -> None:
    """Be the process of a request."""
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream, number)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    run(request["arguments"])


def run(arguments: list[str]) -> None:
    """Run a script, a module (`-m`) or code (`-c`); isolated (`-I`), a script without its folder and `PYTHONPATH`."""
    kind = arguments[0] if arguments[0] in ("-I", "-c", "-m") else None
    sys.argv = arguments[1:] if kind else arguments
    name = sys.argv[0]
    if kind != "-I":
        first = os.getcwd() if kind else os.path.dirname(os.path.abspath(name))
        sys.path[:0] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if kind == "-c":
        main = sys.modules["__main__"] = ModuleType("__main__")
        sys.argv[0] = "-c"
        exec(compile(name, "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(name, run_name="__main__")


def tell(connection: socket.socket, number: int) -> None:
    """Send a number to a client, unless it has left."""
    with suppress(BrokenPipeError):
        connection.sendall(f"{number}\n".encode())


def serve(listener: socket.socket) -> None:
    context = multiprocessing.get_context("fork")
    running: dict[socket.socket, multiprocessing.Process] = {}
    while True:
        ready = wait([0, listener, *running, *(process.sentinel for process in running.values())])
        if 0 in ready:
            break
        for connection, process in list(running.items()):
            if process.sentinel in ready:
                process.join()
                tell(connection, process.exitcode)
                connection.close()
                del running[connection]
            elif connection in ready:
                # The client has left.
                process.kill()
        if listener in ready:
            connection, _ = listener.accept()
            request, streams = receive(connection)
            process = running[connection] = context.Process(target=execute, args=(request, streams))
            process.start()
            tell(connection, process.pid)
            for stream in streams:
                os.close(stream)
    for process in running.values():
        process.kill()
        process.join()


if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        print("listening", flush=True)
        for name in IMPORTS:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()
        serve(listener)
