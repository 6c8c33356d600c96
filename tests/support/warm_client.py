"""
Stands for a warm process, see `warm_python`: a script that passes its arguments, environment, folder and output on,
and ends with the exit code of that process. It imports little, so that it starts at once.
"""

import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    request = {"arguments": sys.argv[2:], "environment": dict(os.environ), "folder": os.getcwd()}
    message = f"{json.dumps(request)}\n".encode()
    sent = socket.send_fds(connection, [message], [1, 2])
    connection.sendall(message[sent:])
    with connection.makefile() as answers:
        process = int(answers.readline())
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, lambda number, _: os.kill(process, number))
        code = int(answers.readline())
# A negative code is the signal that ended the process.
sys.exit(code if code >= 0 else 128 - code)
