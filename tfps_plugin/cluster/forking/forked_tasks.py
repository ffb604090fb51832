"""Tasks that a fork server has started for this process."""

import json
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tfps_plugin import errors
from tfps_plugin.cluster.serving.chief_watch import EXIT_NO_CHIEF

_MODULE = "tfps_plugin.cluster.forking.fork_server"
_STOP_TIMEOUT_SECONDS = 5.0
# Length of the quoted end of that process's log.
_LOG_TAIL_CHARACTERS = 3000
_ENDED = "the process that forks tasks has ended"


class ForkedTask:
    """Process of a task, with the methods of `subprocess.Popen`.

    Attributes:
        pid: Number of the process.

    Threading: safe from any thread; it has no lock.
    """

    def __init__(self, pid: int, tasks: "ForkedTasks") -> None:
        self.pid = pid
        self._tasks = tasks
        self._has_ended = threading.Event()
        self._exit_code: int | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(pid={self.pid}, {self.returncode=})"

    @property
    def returncode(self) -> int | None:
        """Its exit code; -N if signal N has ended it; None while it runs."""
        return self._exit_code

    def poll(self) -> int | None:
        """Returns `returncode`."""
        return self._exit_code

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end.

        Args:
            timeout: How long to wait, in seconds; None: without a limit.

        Returns:
            The exit code.

        Raises:
            subprocess.TimeoutExpired: If it still runs then.
        """
        if not self._has_ended.wait(timeout) or self._exit_code is None:
            raise subprocess.TimeoutExpired(repr(self), timeout or 0.0)
        return self._exit_code

    def send_signal(self, signal_number: int) -> None:
        """Sends a signal, unless it has ended; waits for nothing."""
        if self._exit_code is None:
            self._tasks.send_signal(self, signal_number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def has_ended(self, exit_code: int) -> None:
        """Records its end; called by `ForkedTasks`."""
        self._exit_code = exit_code
        self._has_ended.set()


class ForkedTasks:
    """Tasks that are forks of one process, which has loaded TensorFlow.

    Guarantees: no task outlives this process, or the one that forks them. A
    signal reaches the task that it is meant for, or nobody.
    Guarded by `_starting`: one task starts at a time. It is held while the
    first one waits for TensorFlow, which may take seconds.
    Guarded by `_writing`, taken after it: each message is written whole.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        log_path: pathlib.Path,
        start_timeout_seconds: float = 120.0,
    ) -> None:
        """Starts the process that forks tasks; does not wait for it.

        Args:
            environ: Its environment, and that of its tasks.
            log_path: File that receives its output.
            start_timeout_seconds: How long starting a task may take.
        """
        self._log_path = log_path
        self._start_timeout_seconds = start_timeout_seconds
        self._starting = threading.Lock()
        self._writing = threading.Lock()
        # Used by the thread that reads only.
        self._running: dict[int, ForkedTask] = {}
        # None: the process has ended.
        self._started: queue.SimpleQueue[ForkedTask | None] = (
            queue.SimpleQueue()
        )
        self._connection, theirs = socket.socketpair()
        with theirs, log_path.open("ab") as log:
            self._process = subprocess.Popen(
                # -P: nothing in the current folder may hide a library.
                [
                    sys.executable,
                    "-P",
                    "-m",
                    _MODULE,
                    f"--socket={theirs.fileno()}",
                ],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                # Ctrl-C only reaches this process, which then ends the tasks.
                start_new_session=True,
            )
        self._reader = threading.Thread(
            target=self._read, name="tfps-forked-tasks", daemon=True
        )
        self._reader.start()

    def start(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        log_path: pathlib.Path,
    ) -> ForkedTask:
        """Starts a task; does not wait until it serves.

        Args:
            arguments: Arguments of `task_server`.
            environ: Environment variables of this task.
            log_path: File to which its output is appended.

        Returns:
            The process of the task.

        Raises:
            TaskStartError: If the process that forks tasks has ended, or does
                not answer in time.
        """
        with self._starting:
            try:
                self._send(
                    {
                        "do": "start",
                        "arguments": list(arguments),
                        "environ": dict(environ),
                        "log": str(log_path),
                    }
                )
                started = self._started.get(timeout=self._start_timeout_seconds)
            except (OSError, queue.Empty) as error:
                raise self._start_error(repr(error)) from error
            if started is None:
                # For the next one who asks.
                self._started.put(None)
                raise self._start_error(_ENDED)
        return started

    def send_signal(self, task: ForkedTask, signal_number: int) -> None:
        """Sends a signal to a task; waits for nothing."""
        message = {
            "do": "signal",
            "pid": task.pid,
            "signal": int(signal_number),
        }
        try:
            self._send(message)
        except OSError:
            # The process has ended, and its tasks with it.
            return

    def close(self) -> None:
        """Ends the process that forks tasks, and the tasks that still run."""
        self._connection.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(_STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_STOP_TIMEOUT_SECONDS)
        self._connection.close()

    def _send(self, message: dict[str, Any]) -> None:
        with self._writing:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _read(self) -> None:
        with self._connection.makefile("rb") as lines:
            try:
                for line in lines:
                    self._hear(json.loads(line))
            except OSError:
                pass
        for task in list(self._running.values()):
            # It ends in this moment, because that process is gone.
            task.has_ended(EXIT_NO_CHIEF)
        self._started.put(None)

    def _hear(self, message: dict[str, Any]) -> None:
        if "started" in message:
            task = ForkedTask(message["started"], self)
            self._running[task.pid] = task
            self._started.put(task)
        else:
            task = self._running.pop(message["ended"])
            task.has_ended(message["exit_code"])

    def _start_error(self, reason: str) -> errors.TaskStartError:
        log = self._log_path.read_text(errors="replace").strip()
        return errors.TaskStartError(
            "A task of the cluster cannot be started. Expected an answer of "
            f"process {self._process.pid}, which loads TensorFlow and forks "
            f"the tasks. Received: {reason}; exit code {self._process.poll()}. "
            f"Its log ends:\n{log[-_LOG_TAIL_CHARACTERS:]}"
        )
