"""A line that says how far the start of a cluster is.

On a terminal it is drawn in place and taken away at the end; nothing is
written elsewhere, where the log says who is waited for.
"""

import sys
from types import TracebackType
from typing import Self
from typing import TextIO

from tfps_plugin.cluster.spec import ClusterSpec

# To the start of the line, and away with what stands there.
_CLEAR_LINE = "\r\x1b[K"


def text(
    cluster: ClusterSpec, num_serving: int, num_tasks: int, seconds: float
) -> str:
    """Says what is being started, and how far that is.

    Args:
        cluster: What the tasks are of.
        num_serving: How many of them serve by now.
        num_tasks: How many are waited for.
        seconds: For how long.
    """
    workers = len(cluster.worker_addresses)
    return (
        f"tfps: starting a cluster on this machine ({workers} "
        f"{'worker' if workers == 1 else 'workers'}, "
        f"{len(cluster.ps_addresses)} ps): {num_serving} of {num_tasks} tasks "
        f"{'serves' if num_serving == 1 else 'serve'} after {seconds:.0f} s"
    )


class ProgressLine:
    """The line, while it stands on a terminal.

    Args:
        stream: Where it goes if that is a terminal; standard error if None.

    Threading: of one thread.
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
        """Takes the line away; may be called again."""
        if self._shown:
            self._write(_CLEAR_LINE)
            self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, characters: str) -> None:
        if self._terminal is not None:
            self._terminal.write(characters)
            self._terminal.flush()
