"""Tasks that a fork server has started for this process."""

import contextlib
import itertools
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
# It does nothing but answer, once it has loaded TensorFlow.
_SIGNAL_TIMEOUT_SECONDS = 30.0
_STOP_TIMEOUT_SECONDS = 5.0
# Length of the quoted end of the fork server's log.
_LOG_TAIL_CHARACTERS = 3000
_IS_OVER = {"failed": "the fork server has ended"}


class ForkedTask:
    """Process of a task, used like a `subprocess.Popen`.

    Attributes:
        pid: Number of the process.

    Threading: safe from any thread; it has no lock.
    """

    def __init__(self, pid: int, tasks: "ForkedTasks") -> None:
        self.pid = pid
        self._tasks = tasks
        self._is_over = threading.Event()
        self._exit_code: int | None = None

    def __repr__(self) -> str:
        return f"ForkedTask(pid={self.pid}, returncode={self._exit_code})"

    @property
    def returncode(self) -> int | None:
        """Its exit code; -N if signal N has ended it; None while it runs."""
        return self._exit_code

    def poll(self) -> int | None:
        """Returns `returncode`, a moment after the system knows it."""
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
        if not self._is_over.wait(timeout) or self._exit_code is None:
            raise subprocess.TimeoutExpired(repr(self), timeout or 0.0)
        return self._exit_code

    def send_signal(self, signal_number: int) -> None:
        """Sends a signal, unless it has ended; returns when it is sent."""
        if self._exit_code is None:
            self._tasks.send_signal(self.pid, signal.Signals(signal_number))

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def record_end(self, exit_code: int) -> None:
        """Records its end; called by `ForkedTasks`."""
        self._exit_code = exit_code
        self._is_over.set()


class ForkedTasks:
    """Tasks that are forks of one process, which has loaded TensorFlow.

    Guarantees: no task outlives this process or the fork server. A signal
    reaches the task that it is meant for, or nobody. A task whose start was
    given up is killed.
    Guarded by `_lock`: the requests without an answer, whether the fork server
    has ended, and that each message is written whole.
    Never call while holding the lock: anything that waits for an answer.
    """

    def __init__(
        self, environ: Mapping[str, str], log_path: pathlib.Path
    ) -> None:
        """Starts the fork server; does not wait for it.

        Args:
            environ: Its environment, and that of its tasks.
            log_path: File to which its output is appended.
        """
        self._log_path = log_path
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._asked: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._is_over = False
        # Used by the thread that reads only.
        self._running: dict[int, ForkedTask] = {}
        with contextlib.ExitStack() as stack:
            ours, theirs = socket.socketpair()
            self._connection = stack.enter_context(ours)
            with theirs, log_path.open("ab") as log:
                for end in (ours, theirs):
                    # The program may have set a default timeout.
                    end.settimeout(None)
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        # Nothing in the current folder may hide a library.
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
                    # Ctrl-C only reaches this process, which ends the tasks.
                    start_new_session=True,
                )
            stack.callback(self._process.wait)
            stack.callback(self._process.kill)
            self._reader = threading.Thread(
                target=self._read, name="tfps-forked-tasks", daemon=True
            )
            self._reader.start()
            # From here on, `close` undoes it.
            stack.pop_all()

    @property
    def is_over(self) -> bool:
        """True if the fork server has ended, and its tasks with it."""
        return self._is_over

    def start(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        log_path: pathlib.Path,
        timeout_seconds: float,
    ) -> ForkedTask:
        """Starts a task; does not wait until it serves.

        Args:
            arguments: Arguments of `task_server`.
            environ: Environment variables of this task.
            log_path: File to which its output is appended.
            timeout_seconds: How long to wait for the fork server, which loads
                TensorFlow first.

        Returns:
            The process of the task.

        Raises:
            TaskStartError: If the fork server cannot start it, or has ended.
            ClusterStartTimeoutError: If it does not answer in time.
        """
        try:
            answer = self._ask(
                {
                    "do": "start",
                    "arguments": list(arguments),
                    "environ": dict(environ),
                    "log": str(log_path),
                },
                timeout_seconds,
            )
        except queue.Empty:
            raise errors.ClusterStartTimeoutError(
                self._failure(f"no answer within {timeout_seconds:.0f} s")
            ) from None
        if "failed" in answer:
            raise errors.TaskStartError(self._failure(answer["failed"]))
        task: ForkedTask = answer["task"]
        return task

    def send_signal(self, pid: int, signal_number: int) -> None:
        """Sends a signal to a task that runs; returns when it is sent.

        Raises:
            TaskStartError: If the fork server does not answer.
        """
        message = {"do": "signal", "pid": pid, "signal": int(signal_number)}
        try:
            # If it fails, the task is gone.
            self._ask(message, _SIGNAL_TIMEOUT_SECONDS)
        except queue.Empty:
            raise errors.TaskStartError(
                self._failure(
                    f"no answer within {_SIGNAL_TIMEOUT_SECONDS:.0f} s"
                )
            ) from None

    def close(self) -> None:
        """Ends the fork server, and the tasks that still run."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(_STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_STOP_TIMEOUT_SECONDS)
        self._reader.join(_STOP_TIMEOUT_SECONDS)
        self._connection.close()

    def _ask(
        self, message: dict[str, Any], timeout_seconds: float
    ) -> dict[str, Any]:
        """Returns the answer to a message.

        Raises:
            queue.Empty: If there is none in time.
        """
        answer: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        number = next(self._numbers)
        with self._lock:
            if self._is_over:
                return _IS_OVER
            self._asked[number] = answer
        try:
            self._send({"number": number, **message})
            return answer.get(timeout=timeout_seconds)
        except OSError:
            return _IS_OVER
        except queue.Empty:
            # Answered in this moment.
            with self._lock:
                if number not in self._asked:
                    return answer.get_nowait()
            raise
        finally:
            with self._lock:
                self._asked.pop(number, None)

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            self._connection.sendall(line)

    def _read(self) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    self._hear(json.loads(line))
        except (OSError, ValueError):
            # It was killed in the middle of a message.
            pass
        finally:
            with self._lock:
                self._is_over = True
                asked = list(self._asked.values())
            for task in self._running.values():
                # It ends in this moment, because the fork server is gone.
                task.record_end(EXIT_NO_CHIEF)
            for answer in asked:
                answer.put(_IS_OVER)

    def _hear(self, message: dict[str, Any]) -> None:
        if "ended" in message:
            task = self._running.pop(message["ended"])
            task.record_end(message["exit_code"])
            return
        if "started" in message:
            task = ForkedTask(message["started"], self)
            self._running[task.pid] = task
            message["task"] = task
        with self._lock:
            answer = self._asked.pop(message["number"], None)
            if answer is not None:
                answer.put(message)
        if answer is None and "started" in message:
            # Its start was given up.
            self._send(
                {
                    "number": next(self._numbers),
                    "do": "signal",
                    "pid": message["started"],
                    "signal": int(signal.SIGKILL),
                }
            )

    def _failure(self, reason: str) -> str:
        if self._is_over:
            # Its connection ends a moment before it does.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT_SECONDS)
        log = self._log_path.read_text(errors="replace").strip()
        return (
            "A task of the cluster cannot be started or ended. Expected an "
            f"answer of its fork server (process {self._process.pid}), which "
            f"loads TensorFlow. Received: {reason}; exit code "
            f"{self._process.poll()}. Its log ends:\n"
            f"{log[-_LOG_TAIL_CHARACTERS:]}"
        )
