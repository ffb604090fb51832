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
from tfps_plugin.launcher.process_plan import ProcessPlan
from tfps_plugin.launcher.process_plan import command_line

_CHUNK_BYTES = 64 * 1024
# The lines of a log that are quoted when its task dies.
_LAST_LINES = 15
# The time that the kernel may take to end a process that was killed.
_LAST_SECONDS = 5.0


class Output:
    """A stream of a child process, read without blocking.

    Args:
        stream: "stdout" or "stderr".
        pipe: Our end of its pipe.
        keep_colours: Whether colors stay in the lines.

    Attributes:
        noise_filter: A filter that shows the lines without TensorFlow's noise.

    Threading: for use by one thread.
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
        """True while more may come."""
        return not self._pipe.closed

    def read(self) -> list[str]:
        """Returns the lines since the last call; closes an ended stream."""
        try:
            data = os.read(self.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return []
        return self._lines.feed(data) if data else self.close()

    def drain(self) -> list[str]:
        """Closes the stream; returns the lines that were not read yet."""
        lines = []
        while self.is_open:
            try:
                data = os.read(self.fileno(), _CHUNK_BYTES)
            except BlockingIOError:
                data = b""  # Another process holds it open but writes nothing.
            lines += self._lines.feed(data) if data else self.close()
        return lines

    def close(self) -> list[str]:
        """Closes the stream; returns its last line if that had no end."""
        self._pipe.close()
        return self._lines.finish()

    def glimpse(self) -> list[str]:
        """Returns the current progress bar, if it has changed."""
        line = self._lines.unfinished()
        if not self._lines.redrawn or line == self._last_glimpse:
            return []
        self._last_glimpse = line
        return [line]


class ChildProcess:
    """The process of a running task.

    It leads a process group of its own. So Ctrl-C in the terminal reaches only
    the launcher, which passes it on to whom it chooses, and a signal to the
    group reaches all that the task has started. The process dies with the
    launcher.

    Args:
        plan: The process to start.
        environ: The environment of the job.
        passed_through: The streams that go where our own go.
        errors_to: A file descriptor for its standard error. The caller may
            close it afterwards: the process has a copy.
        reads_stdin: Whether it may read our standard input.
        pass_descriptors: More file descriptors of ours that it inherits.
        coloured: The streams that keep their colors.

    Raises:
        OSError: If the process cannot be started.

    Threading: for use by the thread that made it; the process ends with that
    thread.
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
        # Python never buffers standard error, wherever it goes.
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
        """The id of the process and of its group."""
        return self._process.pid

    @property
    def elapsed_seconds(self) -> float:
        """The time since it was started."""
        return time.monotonic() - self._started

    def remember(self, lines: list[str]) -> None:
        """Keeps the last lines for the report of its death."""
        if self.last_lines is not None:
            self.last_lines.extend(lines)

    def has_ended(self) -> bool:
        """Returns whether it has ended; it still keeps its process id."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process and to all that it has started."""
        # The group may have no member left that accepts a signal.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def bury(self) -> int:
        """Waits for the dead process, so that the system forgets it.

        Kills what it has left behind first: afterwards another group may get
        its id.

        Returns:
            The exit code, as in `subprocess`: negative for a signal.
        """
        self.send(signal.SIGKILL)
        return self._process.wait()

    def discard(self) -> None:
        """Kills the process and closes its streams, in any state."""
        # Another group may have the id of one that is buried.
        if self._process.returncode is None:
            self.send(signal.SIGKILL)
        # A process that waits for a broken disk does not end even so.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_SECONDS)
        for output in self.outputs:
            output.close()
