"""Where the lines of all tasks come together."""

import sys
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TextIO

import click

from tfps_plugin.cluster.output import labels

STDOUT = "stdout"
STDERR = "stderr"

# What the launcher itself says has this label.
_OWN_NAME = "tfps"

# To the start of the line, and away with what stands there.
_CLEAR_LINE = "\r\x1b[K"


class Console:
    """Writes labelled lines to this process's own output.

    What a task writes to its standard output goes to ours, and its errors to
    our errors, so that both can still be told apart behind us. When ours is a
    terminal, the chief writes to it without a label: its progress bars, its
    colours and a debugger look as they would without a launcher.
    Lines of other tasks then push aside an unfinished line of the chief's:
    a progress bar draws itself again at its next step.

    Args:
        names: The names of all tasks.
        environ: The environment, for the wishes about colour.
        stdout: Our standard output.
        stderr: Our standard error.

    Threading: of one thread.
    """

    def __init__(
        self,
        names: Sequence[str],
        environ: Mapping[str, str],
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self._files = {
            STDOUT: sys.stdout if stdout is None else stdout,
            STDERR: sys.stderr if stderr is None else stderr,
        }
        self._coloured = {
            stream: labels.wants_colour(environ, is_terminal=file.isatty())
            for stream, file in self._files.items()
        }
        self._labels = {
            stream: labels.make_labels(
                [_OWN_NAME, *names], coloured=self._coloured[stream]
            )
            for stream in self._files
        }

    def is_terminal(self, stream: str) -> bool:
        """Whether a person may be looking at the stream."""
        return self._files[stream].isatty()

    def descriptor(self, stream: str) -> int:
        """The file descriptor behind the stream."""
        return self._files[stream].fileno()

    def is_coloured(self, stream: str) -> bool:
        """Whether colours in the stream are welcome."""
        return self._coloured[stream]

    def show(self, name: str, stream: str, lines: Sequence[str]) -> None:
        """Writes lines of a task.

        Raises:
            BrokenPipeError: If nobody reads our output any more.
        """
        if not lines:
            return
        file = self._files[stream]
        start = _CLEAR_LINE if self.is_terminal(stream) else ""
        label = self._labels[stream][name]
        text = "".join(f"{start}{label}{line}\n" for line in lines)
        # Our output may know fewer characters than the task's.
        encoding = file.encoding or "utf-8"
        file.write(text.encode(encoding, "replace").decode(encoding))
        file.flush()

    def forward(self, stream: str, data: bytes) -> None:
        """Writes bytes of the chief's as they are.

        Raises:
            BrokenPipeError: If nobody reads our output any more.
        """
        file = self._files[stream]
        file.flush()
        file.buffer.write(data)
        file.buffer.flush()

    def say(self, *lines: str, alarming: bool = False) -> None:
        """Writes what the launcher itself has to say, to our errors."""
        if alarming and self._coloured[STDERR]:
            lines = tuple(click.style(line, fg="red") for line in lines)
        self.show(_OWN_NAME, STDERR, lines)
