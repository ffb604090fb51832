"""Lines of a task's log that the user of its chief sees.

A user wants to see the output of their own code on the workers, and errors
there. Routine messages of tasks are only in their logs.
"""

import dataclasses
import re
from collections.abc import Iterable

from tfps_plugin.cluster.output import json_lines
from tfps_plugin.cluster.output import tensorflow_noise
from tfps_plugin.cluster.output.tensorflow_noise import LineNoiseFilter

# Routine messages of a task server, and its last message when its chief ends
# it.
_OWN_NEWS = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:DEBUG|INFO) .*"
    r"|tfps_plugin: (?:terminated by SIGTERM|the process that began this is "
    r"gone)\."
)


@dataclasses.dataclass(frozen=True)
class SortedLines:
    """Lines of one task, in their order.

    Attributes:
        shown: Lines for the user.
        kept: The other lines.
    """

    shown: list[str]
    kept: list[str]


class TaskLines:
    """Sorts the lines of one task as they arrive.

    Args:
        log_level: Its `TF_CPP_MIN_LOG_LEVEL`: a user who asks TensorFlow for
            more than errors sees all of its messages.

    Threading: for one thread.
    """

    def __init__(self, log_level: str) -> None:
        self._noise_filter = (
            LineNoiseFilter() if tensorflow_noise.is_quiet(log_level) else None
        )

    def sort(self, lines: Iterable[str]) -> SortedLines:
        """Sorts the next lines."""
        found = SortedLines([], [])
        for line in lines:
            is_news = _OWN_NEWS.fullmatch(line) or json_lines.is_own_news(line)
            is_shown = not is_news and (
                self._noise_filter is None or self._noise_filter.shows(line)
            )
            (found.shown if is_shown else found.kept).append(line)
        return found
