"""Line that shows the progress of the start of a cluster.

On a terminal and in a notebook it is drawn in place and removed at the end.
Other streams, and logs as JSON, get nothing; there the log names the missing
tasks.
"""

import os
import sys
from typing import Self
from typing import TextIO

from tfps_plugin.cluster.output import json_lines
from tfps_plugin.cluster.output.console import is_terminal
from tfps_plugin.cluster.spec import ClusterSpec

# Moves to the start of the line, and clears the line.
_CLEAR_LINE = "\r\x1b[K"


def loading_text(cluster: ClusterSpec) -> str:
    """Returns the text of the line before any task has started.

    Args:
        cluster: The cluster of the tasks.
    """
    return f"{_start_of(cluster)}: loading TensorFlow"


def text(
    cluster: ClusterSpec, num_serving: int, num_tasks: int, seconds: float
) -> str:
    """Returns the text of the line while tasks start.

    Args:
        cluster: The cluster of the tasks.
        num_serving: Number of tasks that serve so far.
        num_tasks: Number of expected tasks.
        seconds: Time so far.
    """
    return (
        f"{_start_of(cluster)}: {num_serving} of {num_tasks} tasks "
        f"{'serves' if num_serving == 1 else 'serve'} after {seconds:.0f} s"
    )


def waiting_text(num_answering: int, num_tasks: int, seconds: float) -> str:
    """Returns the text of the line while a chief waits for its tasks.

    Args:
        num_answering: Number of tasks that answer so far.
        num_tasks: Number of expected tasks.
        seconds: Time so far.
    """
    return (
        f"tfps: waiting for the tasks of the cluster: {num_answering} of "
        f"{num_tasks} {'answers' if num_answering == 1 else 'answer'} after "
        f"{seconds:.0f} s"
    )


class ProgressLine:
    """The line, as it is shown on a terminal or in a notebook.

    Args:
        stream: The stream to use if it can; None: standard error.

    Threading: for one thread.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        stream = sys.stderr if stream is None else stream
        # A program without a terminal may have no standard error at all.
        is_drawn = (
            stream is not None
            and (is_terminal(stream) or _is_of_notebook(stream))
            and not json_lines.is_json(os.environ)
        )
        self._stream = stream if is_drawn else None
        self._shown = ""

    def show(self, line: str) -> None:
        """Draws the line, if it has changed."""
        if line != self._shown:
            self._write(self._clearing() + line)
            self._shown = line

    def close(self) -> None:
        """Removes the line; may be called again, and so may `show`."""
        if self._shown:
            self._write(self._clearing())
            self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _clearing(self) -> str:
        if self._stream is None or is_terminal(self._stream):
            return _CLEAR_LINE
        # Not all front ends of notebooks know more than the carriage return.
        return "\r" + " " * len(self._shown) + "\r" if self._shown else ""

    def _write(self, characters: str) -> None:
        if self._stream is not None:
            self._stream.write(characters)
            self._stream.flush()


def _start_of(cluster: ClusterSpec) -> str:
    workers = len(cluster.worker_addresses)
    return (
        f"tfps: starting a cluster on this machine ({workers} "
        f"{'worker' if workers == 1 else 'workers'}, "
        f"{len(cluster.ps_addresses)} ps)"
    )


def _is_of_notebook(stream: TextIO) -> bool:
    """Returns whether a stream is shown below the cell of a notebook."""
    return type(stream).__module__.partition(".")[0] == "ipykernel"
