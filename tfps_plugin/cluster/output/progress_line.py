"""Line that shows the progress of the start of a cluster.

On a terminal it is drawn in place and removed at the end. Other streams get
nothing; there the log names the missing tasks.
"""

import sys
from typing import Self
from typing import TextIO

from tfps_plugin.cluster.spec import ClusterSpec

# Moves to the start of the line, and clears the line.
_CLEAR_LINE = "\r\x1b[K"


def text(
    cluster: ClusterSpec, num_serving: int, num_tasks: int, seconds: float
) -> str:
    """Returns the text of the line.

    Args:
        cluster: The cluster of the tasks.
        num_serving: Number of tasks that serve so far.
        num_tasks: Number of expected tasks.
        seconds: Time so far.
    """
    workers = len(cluster.worker_addresses)
    return (
        f"tfps: starting a cluster on this machine ({workers} "
        f"{'worker' if workers == 1 else 'workers'}, "
        f"{len(cluster.ps_addresses)} ps): {num_serving} of {num_tasks} tasks "
        f"{'serves' if num_serving == 1 else 'serve'} after {seconds:.0f} s"
    )


class ProgressLine:
    """The line, as it is shown on a terminal.

    Args:
        stream: The stream to use if it is a terminal; None: standard error.

    Threading: for one thread.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        stream = sys.stderr if stream is None else stream
        # A program without a terminal may have no standard error at all.
        has_terminal = stream is not None and stream.isatty()
        self._terminal = stream if has_terminal else None
        self._shown = ""

    def show(self, line: str) -> None:
        """Draws the line, if it has changed."""
        if line != self._shown:
            self._write(_CLEAR_LINE + line)
            self._shown = line

    def close(self) -> None:
        """Removes the line; may be called again."""
        if self._shown:
            self._write(_CLEAR_LINE)
            self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, characters: str) -> None:
        if self._terminal is not None:
            self._terminal.write(characters)
            self._terminal.flush()
