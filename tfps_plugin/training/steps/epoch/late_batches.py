"""Batches of an epoch whose gradients came too late for their step."""

import collections
import logging
from collections.abc import Callable

from tfps_plugin.monitoring.counters import Counters

_logger = logging.getLogger("tfps_plugin")


class LateBatches:
    """Counts the batches that members compute, and those that do not count.

    Threading: each member's thread notes its own batches while a span runs;
    the thread that runs `fit` does all else, between spans.

    Attributes:
        num_backup: Number of members whose gradients a step does without; if
            it is 0, there is nothing to count.
    """

    def __init__(self, num_backup: int, counters: Counters) -> None:
        """Begins an epoch.

        Args:
            num_backup: Number of members whose gradients a step does without.
            counters: Counts gradients that are dropped.
        """
        self.num_backup = num_backup
        self._counters = counters
        self._num_computed: collections.Counter[int] = collections.Counter()
        self._num_dropped = 0
        # Of batches that the chief has read.
        self._num_examples_left_out = 0

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
        self._num_dropped += num_dropped
        self._counters.increment("gradients_dropped", num_dropped)

    def leave_out(self, num_examples: int) -> None:
        """Counts examples that nobody trains on, because they came too late."""
        self._num_examples_left_out += num_examples

    def report(self) -> None:
        """Logs the result of the epoch."""
        if not self.num_backup:
            return
        _logger.info(
            "The gradients of %d batches of this epoch came too late for "
            "their step, and were dropped (backup_workers=%d).",
            self._num_dropped,
            self.num_backup,
        )
        if self._num_examples_left_out:
            _logger.info(
                "%d examples of this epoch were not trained on, because the "
                "workers that had them were late (backup_workers=%d).",
                self._num_examples_left_out,
                self.num_backup,
            )
