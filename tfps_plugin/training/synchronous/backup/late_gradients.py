"""Gradients that came too late for their step."""

import collections
from collections.abc import Callable

from tfps_plugin.monitoring.counters import Counters


class LateGradients:
    """Counts the batches that members compute, and those that do not count.

    Threading: each member's thread notes its own batches while a span runs;
    all else is used between spans.

    Attributes:
        num_backup: Number of members whose gradients a step does without; if
            it is 0, there is nothing to count.
        num_dropped: Number of batches that did not count, so far.
    """

    def __init__(self, num_backup: int, counters: Counters) -> None:
        """Begins to count.

        Args:
            num_backup: Number of members whose gradients a step does without.
            counters: Counts gradients that are dropped.
        """
        self.num_backup = num_backup
        self.num_dropped = 0
        self._counters = counters
        self._num_computed: collections.Counter[int] = collections.Counter()

    def note(self, worker: int, num_batches: int) -> None:
        """Records batches that a member has computed.

        Args:
            worker: Index of the member.
            num_batches: Number of batches.
        """
        self._num_computed[worker] += num_batches

    def settle(self, num_parts: Callable[[int], int] | None) -> None:
        """Takes over the result of a span.

        Args:
            num_parts: Returns the number of steps that a member has had a part
                in; None if all variables go back to a checkpoint.
        """
        computed, self._num_computed = (
            self._num_computed,
            collections.Counter(),
        )
        if num_parts is None or not self.num_backup:
            return
        num_dropped = sum(
            max(0, number - num_parts(worker))
            for worker, number in computed.items()
        )
        self.num_dropped += num_dropped
        self._counters.increment("gradients_dropped", num_dropped)
