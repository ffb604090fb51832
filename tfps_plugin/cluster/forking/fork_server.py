"""Process that has loaded TensorFlow, and forks the tasks of a local cluster.

    python -m tfps_plugin.cluster.forking.fork_server --socket=FD

A process needs most of a second of processor time, and 60 MB that it shares
with nobody, to load TensorFlow's native library. A fork has the library at
once, and shares its memory. Python's `multiprocessing` has a fork server, too,
but it imports the user's program into every process.

A fork has only one thread, so it is safe only while this process has no other.
TensorFlow starts none before it serves. If a plugin of TensorFlow or another
library does, tasks load everything for themselves (`ForkServer.is_alone`).

Messages are lines of JSON on a Unix socket; each request has a number, and gets
one answer with that number. At the socket's end this process ends, and its
tasks with it.
"""

import argparse
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from typing import Any
from typing import NoReturn

from tfps_plugin.cluster.serving import task_server

_EXIT_FAILED = 1
_THREADS = "/proc/self/task"


class ForkServer:
    """Forks tasks as it is told, and reports their ends.

    Not thread-safe: it is all that its process does.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Takes the connection to the process that uses it."""
        self._connection = connection
        self._lines = connection.makefile("rb", buffering=0)
        self._selector = selectors.DefaultSelector()
        self._children: set[int] = set()
        # Tasks wait for the end of the pipe; only this process has the other
        # end, so that none outlives it.
        self._pipe, self._held_end = os.pipe()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    @property
    def is_alone(self) -> bool:
        """True while this process has one thread, so that forks are whole."""
        return len(os.listdir(_THREADS)) == 1

    def run(self) -> None:
        """Works until the other process closes the connection."""
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._selector.register(self._connection, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._connection:
                    os.read(self._woken, 4096)
                    self._report_ends()
                elif line := self._lines.readline():
                    self._obey(json.loads(line))
                else:
                    return

    def _obey(self, request: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"number": request["number"]}
        try:
            if request["do"] == "start":
                answer["started"] = self._start(request)
            elif request["pid"] in self._children:
                # A child that has not been waited for keeps its number.
                os.kill(request["pid"], request["signal"])
        except OSError as error:
            answer["failed"] = str(error)
        self._send(answer)

    def _start(self, request: dict[str, Any]) -> int:
        is_whole = self.is_alone
        pid = os.fork()
        if not pid:
            self._become_task(request, is_whole=is_whole)
        self._children.add(pid)
        return pid

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

    def _become_task(
        self, request: dict[str, Any], *, is_whole: bool
    ) -> NoReturn:
        """Serves as a task, in the new process."""
        exit_code = _EXIT_FAILED
        try:
            log = os.open(
                request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
            )
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            for descriptor in (self._held_end, self._woken, self._wake):
                os.close(descriptor)
            self._selector.close()
            self._lines.close()
            self._connection.close()
            os.environ.update(request["environ"])
            arguments = [f"--parent-pipe={self._pipe}", *request["arguments"]]
            if is_whole:
                task_server.main(arguments)
            os.set_inheritable(self._pipe, True)
            program = [sys.executable, "-P", "-m", task_server.__name__]
            os.execv(sys.executable, [*program, *arguments])
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
    # A task computes nothing in NumPy, whose OpenBLAS would start threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    exit_code = _EXIT_FAILED
    try:
        # Everything that a task needs; it is loaded here, and never again.
        from tfps_plugin._compat.runtime import tensorflow_server
        from tfps_plugin.cluster.serving import mailbox

        del tensorflow_server, mailbox
        with socket.socket(fileno=options.socket) as connection:
            ForkServer(connection).run()
        exit_code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Without TensorFlow's own end, which takes a while.
        os._exit(exit_code)


if __name__ == "__main__":
    main()
