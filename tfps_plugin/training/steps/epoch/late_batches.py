"""Batches of an epoch whose gradients came too late for their step."""

import logging

from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.training.synchronous.backup.late_gradients import LateGradients

_logger = logging.getLogger("tfps_plugin.training")


class LateBatches(LateGradients):
    """Counts batches of an epoch that do not count, and reports them.

    Threading: as of `LateGradients`.
    """

    def __init__(self, num_backup: int, counters: Counters) -> None:
        """Begins an epoch; see `LateGradients`."""
        super().__init__(num_backup, counters)
        # Of batches that the chief has read.
        self._num_examples_left_out = 0

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
            self.num_dropped,
            self.num_backup,
        )
        if self._num_examples_left_out:
            _logger.info(
                "%d examples of this epoch were not trained on, because the "
                "workers that had them were late (backup_workers=%d).",
                self._num_examples_left_out,
                self.num_backup,
            )
