"""Which lines of a task's log the user of its chief sees.

Whoever runs a program alone wants to see what their own code prints on the
workers, and what goes wrong there. What every task says in every job is in its
log.
"""

import dataclasses
import re
from collections.abc import Iterable

from tfps_plugin.cluster.output import tensorflow_noise
from tfps_plugin.cluster.output.tensorflow_noise import LineNoiseFilter

# What a task server logs of an ordinary life, and its last words when its
# chief has it end.
_OWN_NEWS = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:DEBUG|INFO) .*"
    r"|tfps_plugin: (?:terminated by SIGTERM|the process that began this is "
    r"gone)\."
)


@dataclasses.dataclass(frozen=True)
class SortedLines:
    """Lines of one task, in their order.

    Attributes:
        shown: For the user.
        kept: For whoever wants to know everything.
    """

    shown: list[str]
    kept: list[str]


class TaskLines:
    """Sorts the lines of one task as they come.

    Args:
        log_level: Its `TF_CPP_MIN_LOG_LEVEL`: who asks TensorFlow for more
            than errors gets all that it says.

    Threading: of one thread.
    """

    def __init__(self, log_level: str) -> None:
        self._noise_filter = (
            LineNoiseFilter() if tensorflow_noise.is_quiet(log_level) else None
        )

    def sort(self, lines: Iterable[str]) -> SortedLines:
        """Sorts the next lines."""
        found = SortedLines([], [])
        for line in lines:
            is_shown = not _OWN_NEWS.fullmatch(line) and (
                self._noise_filter is None or self._noise_filter.shows(line)
            )
            (found.shown if is_shown else found.kept).append(line)
        return found
