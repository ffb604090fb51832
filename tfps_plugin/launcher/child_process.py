"""The process of one task: start, output, signals, end."""

import collections
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from collections.abc import Mapping
from typing import IO

from tfps_plugin.cluster.output import console
from tfps_plugin.cluster.output.tensorflow_noise import LineNoiseFilter
from tfps_plugin.cluster.output.terminal_line import TerminalLines
from tfps_plugin.launcher import leash
from tfps_plugin.launcher.plan import ProcessPlan
from tfps_plugin.launcher.plan import command_line

_CHUNK_BYTES = 64 * 1024
# How much of a log is told again when its task dies.
_LAST_LINES = 15
# How long the kernel may take to end a process that was killed.
_LAST_SECONDS = 5.0


class Output:
    """One stream that a child writes and we read, without ever waiting.

    Args:
        stream: "stdout" or "stderr".
        pipe: Our end of it.
        keep_colours: Whether colours stay in the lines.

    Attributes:
        noise_filter: For whoever wants to show its lines without TensorFlow's
            noise.

    Threading: of one thread.
    """

    def __init__(
        self, stream: str, pipe: IO[bytes], *, keep_colours: bool
    ) -> None:
        self.stream = stream
        self.noise_filter = LineNoiseFilter()
        self._pipe = pipe
        self._lines = TerminalLines(keep_colours=keep_colours)
        self._last_glimpse = ""
        os.set_blocking(pipe.fileno(), False)

    def fileno(self) -> int:
        """The file descriptor to wait on."""
        return self._pipe.fileno()

    @property
    def is_open(self) -> bool:
        """Whether more may come."""
        return not self._pipe.closed

    def read(self) -> list[str]:
        """The lines that have come since; closes the stream at its end."""
        try:
            data = os.read(self.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return []
        return self._lines.feed(data) if data else self.close()

    def drain(self) -> list[str]:
        """The lines that are left once nobody writes any more; closes."""
        lines = []
        while self.is_open:
            try:
                data = os.read(self.fileno(), _CHUNK_BYTES)
            except BlockingIOError:
                data = b""  # Somebody holds it open, and has nothing to say.
            lines += self._lines.feed(data) if data else self.close()
        return lines

    def close(self) -> list[str]:
        """Closes the stream; returns the line that was not ended."""
        self._pipe.close()
        return self._lines.finish()

    def glimpse(self) -> list[str]:
        """The progress bar that is being drawn, if it has moved since."""
        line = self._lines.unfinished()
        if not self._lines.redrawn or line == self._last_glimpse:
            return []
        self._last_glimpse = line
        return [line]


class ChildProcess:
    """A running task.

    It leads a process group of its own: Ctrl-C in the terminal reaches only
    the launcher, which decides who hears of it, and a signal reaches whatever
    the task has started. It dies with the launcher.

    Args:
        plan: What to start.
        environ: The environment to start from.
        passed_through: The streams that go where our own go.
        errors_to: A file descriptor for its errors. The caller may close it
            afterwards: the process has its own.
        reads_stdin: Whether it may read our standard input.
        pass_descriptors: File descriptors of ours that it gets too.
        coloured: The streams whose colours are kept.

    Raises:
        OSError: If the process cannot be started.

    Threading: of the one thread that made it; when that ends, so does the
    process.
    """

    def __init__(
        self,
        plan: ProcessPlan,
        environ: Mapping[str, str],
        *,
        passed_through: Collection[str] = (),
        errors_to: int | None = None,
        reads_stdin: bool = False,
        pass_descriptors: Collection[int] = (),
        coloured: Collection[str] = (),
    ) -> None:
        self.name = plan.name
        self.last_lines: collections.deque[str] | None = None
        self._started = time.monotonic()
        pipes = {
            stream: None if stream in passed_through else subprocess.PIPE
            for stream in (console.STDOUT, console.STDERR)
        }
        if errors_to is not None:
            pipes[console.STDERR] = errors_to
        # Errors are never kept back by Python, wherever they go.
        unbuffered = pipes[console.STDOUT] is not None
        command = command_line(plan, unbuffered=unbuffered)
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S"),
                str(pathlib.Path(leash.__file__)),
                *(str(os.getpid()), *command),
            ],
            stdin=None if reads_stdin else subprocess.DEVNULL,
            stdout=pipes[console.STDOUT],
            stderr=pipes[console.STDERR],
            env={**environ, **plan.environ},
            pass_fds=tuple(pass_descriptors),
            start_new_session=True,
        )
        self.outputs = tuple(
            Output(stream, pipe, keep_colours=stream in coloured)
            for stream, pipe in (
                (console.STDOUT, self._process.stdout),
                (console.STDERR, self._process.stderr),
            )
            if pipe is not None
        )
        if self.outputs:
            self.last_lines = collections.deque(maxlen=_LAST_LINES)

    @property
    def pid(self) -> int:
        """The process id, also that of its group."""
        return self._process.pid

    @property
    def elapsed_seconds(self) -> float:
        """How long ago it was started."""
        return time.monotonic() - self._started

    def remember(self, lines: list[str]) -> None:
        """Keeps lines for the report of its death."""
        if self.last_lines is not None:
            self.last_lines.extend(lines)

    def has_ended(self) -> bool:
        """Whether it is dead; it stays unburied, and its id its own."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to it and to whatever it has started."""
        # The group may have no member left that can take a signal.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def bury(self) -> int:
        """Takes the dead process off the system's list.

        What it had started and left behind is killed first: afterwards the
        group's id may be somebody else's.

        Returns:
            How it ended, as `subprocess` counts: negative for a signal.
        """
        self.send(signal.SIGKILL)
        return self._process.wait()

    def discard(self) -> None:
        """Kills it and closes its streams, whatever state it is in."""
        self.send(signal.SIGKILL)
        # Not even this ends a process that waits for a broken disk.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_SECONDS)
        for output in self.outputs:
            output.close()
