"""Console that merges the lines of all tasks."""

import itertools
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TextIO

import click

from tfps_plugin.cluster.output import json_lines

STDOUT = "stdout"
STDERR = "stderr"

# Label of the launcher's own lines.
_OWN_NAME = "tfps"
_OWN_LOGGER = "tfps_plugin.launcher"

# Moves to the start of the line, and clears the line.
_CLEAR_LINE = "\r\x1b[K"

# Without red, which suggests an error, and without extremes, which are
# invisible on a terminal of the same colour.
_PALETTE = (
    "cyan",
    "green",
    "yellow",
    "magenta",
    "blue",
    "bright_cyan",
    "bright_green",
    "bright_yellow",
    "bright_magenta",
    "bright_blue",
)


class Console:
    """Writes labelled lines to this process's own output.

    The standard output of a task goes to our standard output, and its standard
    error to our standard error, so that they stay separate. If our output is a
    terminal, the chief writes to it without a label: its progress bars,
    colours and debugger look as they would without a launcher. Lines of other
    tasks then replace an unfinished line of the chief: a progress bar redraws
    itself at its next step.

    Args:
        names: The names of all tasks.
        environ: The environment, for settings of colour.
        stdout: Our standard output.
        stderr: Our standard error.
        as_json: Whether to write JSON, one object a line. Then nothing is
            written without a label, and nothing is coloured.

    Threading: for one thread.
    """

    def __init__(
        self,
        names: Sequence[str],
        environ: Mapping[str, str],
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        *,
        as_json: bool = False,
    ) -> None:
        self._as_json = as_json
        self._files = {
            STDOUT: sys.stdout if stdout is None else stdout,
            STDERR: sys.stderr if stderr is None else stderr,
        }
        self._coloured = {
            stream: not as_json
            and wants_colour(environ, is_terminal=is_terminal(file))
            for stream, file in self._files.items()
        }
        self._labels = {
            stream: make_labels(
                [_OWN_NAME, *names], coloured=self._coloured[stream]
            )
            for stream in self._files
        }

    def is_terminal(self, stream: str) -> bool:
        """Returns whether the stream is a terminal that people look at."""
        return not self._as_json and is_terminal(self._files[stream])

    def descriptor(self, stream: str) -> int:
        """Returns the file descriptor of the stream."""
        return self._files[stream].fileno()

    def is_coloured(self, stream: str) -> bool:
        """Returns whether to use colours in the stream."""
        return self._coloured[stream]

    def show(self, name: str, stream: str, lines: Sequence[str]) -> None:
        """Writes lines of a task.

        Raises:
            BrokenPipeError: If our output is closed.
        """
        if not lines:
            return
        if self._as_json:
            self._write(
                stream,
                [json_lines.of_line(line, name, stream) for line in lines],
            )
            return
        start = _CLEAR_LINE if self.is_terminal(stream) else ""
        label = self._labels[stream][name]
        self._write(stream, [f"{start}{label}{line}" for line in lines])

    def _write(self, stream: str, lines: Sequence[str]) -> None:
        file = self._files[stream]
        text = "".join(f"{line}\n" for line in lines)
        # Our output may support fewer characters than the task's.
        encoding = getattr(file, "encoding", None) or "utf-8"
        file.write(text.encode(encoding, "replace").decode(encoding))
        file.flush()

    def forward(self, stream: str, data: bytes) -> None:
        """Writes bytes of the chief unchanged.

        Raises:
            BrokenPipeError: If our output is closed.
        """
        file = self._files[stream]
        file.flush()
        file.buffer.write(data)
        file.buffer.flush()

    def say(self, *lines: str, alarming: bool = False) -> None:
        """Writes lines of the launcher itself to our standard error."""
        if self._as_json:
            level = "ERROR" if alarming else "INFO"
            text = "\n".join(lines)
            line = json_lines.entry(level, _OWN_LOGGER, _OWN_NAME, text)
            self._write(STDERR, [line])
            return
        if alarming and self._coloured[STDERR]:
            lines = tuple(click.style(line, fg="red") for line in lines)
        self.show(_OWN_NAME, STDERR, lines)


def is_terminal(file: TextIO) -> bool:
    """Returns whether a file is a terminal.

    Args:
        file: The file; a program may have replaced standard error by an object
            that can only be written to.
    """
    isatty = getattr(file, "isatty", None)
    return isatty is not None and isatty()


def make_labels(names: Sequence[str], *, coloured: bool) -> dict[str, str]:
    """Returns the prefix of each task, all of one width: "ps 0     | ".

    Args:
        names: The tasks' names; each gets its own colour while there are any.
        coloured: Whether the output supports colours.
    """
    width = max(map(len, names), default=0)
    labels = {}
    for name, colour in zip(names, itertools.cycle(_PALETTE), strict=False):
        label = f"{name:<{width}} | "
        labels[name] = click.style(label, fg=colour) if coloured else label
    return labels


def wants_colour(environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Returns whether to use colours in a stream.

    Any value of `NO_COLOR` forbids them (https://no-color.org), as does a
    terminal of type "dumb"; `FORCE_COLOR` requests them for other streams.
    """
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"
