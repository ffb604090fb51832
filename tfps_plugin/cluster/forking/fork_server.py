"""Process that has loaded TensorFlow, and forks the tasks of a local cluster.

    python -m tfps_plugin.cluster.forking.fork_server --socket=FD

A process needs most of a second of processor time, and 60 MB that it shares
with nobody, to load TensorFlow's native library. A fork has the library at
once, and shares its memory. Python's `multiprocessing` has a fork server, too,
but it imports the user's program into every process.

Forking is safe here: TensorFlow starts no thread before it serves, and draws no
random number. NumPy's OpenBLAS has threads, and makes new ones in a fork.

Messages are lines of JSON on a Unix socket. At the socket's end this process
ends, and its tasks with it.
"""

import argparse
import json
import os
import selectors
import signal
import socket
import traceback
import warnings
from typing import Any
from typing import NoReturn

from tfps_plugin.cluster.serving import task_server

_EXIT_FAILED = 1


class ForkServer:
    """Forks tasks as it is told, and reports their ends.

    Not thread-safe: it is all that its process does. No thread may ever start
    here, because forks would lack it.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Takes the connection to the process that uses it."""
        self._connection = connection
        self._lines = connection.makefile("rb", buffering=0)
        self._children: set[int] = set()
        # Tasks wait for the end of the pipe; only this process has the other
        # end, so that none outlives it.
        self._pipe, self._held_end = os.pipe()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def run(self) -> None:
        """Works until the other process closes the connection."""
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is not self._connection:
                        os.read(self._woken, 4096)
                        self._report_ends()
                    elif not self._obey(self._lines.readline()):
                        return

    def _obey(self, line: bytes) -> bool:
        """Does what a line says; returns whether to go on."""
        if not line:
            return False
        message = json.loads(line)
        if message["do"] == "start":
            self._start(message)
        elif message["pid"] in self._children:
            # A child that has not been waited for keeps its number.
            os.kill(message["pid"], message["signal"])
        return True

    def _start(self, message: dict[str, Any]) -> None:
        pid = os.fork()
        if not pid:
            self._become_task(message)
        self._children.add(pid)
        self._send({"started": pid})

    def _report_ends(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._children.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            self._send({"ended": pid, "exit_code": code})

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _become_task(self, message: dict[str, Any]) -> NoReturn:
        """Serves as a task, in the new process."""
        exit_code = _EXIT_FAILED
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            for descriptor in (self._held_end, self._woken, self._wake):
                os.close(descriptor)
            self._lines.close()
            self._connection.close()
            log = os.open(
                message["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
            )
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            os.environ.update(message["environ"])
            task_server.main(
                [f"--parent-pipe={self._pipe}", *message["arguments"]]
            )
        except SystemExit as end:
            exit_code = end.code if isinstance(end.code, int) else _EXIT_FAILED
        except BaseException:
            traceback.print_exc()
        finally:
            # Nothing that this process has inherited may run at its end.
            os._exit(exit_code)


def main() -> None:
    """Serves until the other process closes the connection."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}")
    parser.add_argument(
        "--socket",
        type=int,
        required=True,
        help="file descriptor of the connection to the process that uses this",
    )
    options = parser.parse_args()
    # Python 3.12 warns of OpenBLAS's threads.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    # Everything that a task needs; it is loaded here, and never again.
    from tfps_plugin._compat.runtime import tensorflow_server
    from tfps_plugin.cluster.serving import mailbox

    del tensorflow_server, mailbox
    with socket.socket(fileno=options.socket) as connection:
        ForkServer(connection).run()
    # Without TensorFlow's own end, which takes a while.
    os._exit(0)


if __name__ == "__main__":
    main()
