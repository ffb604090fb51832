"""Checkpoints that wait for their evaluation, in order. Pure."""

import dataclasses
from collections.abc import Collection

from tfps_plugin.evaluation.checkpoint import Checkpoint


@dataclasses.dataclass
class _Wait:
    """State of a checkpoint that was not evaluated yet."""

    due: float
    first_failure: float | None = None


class PendingCheckpoints:
    """Checkpoints that were found and are still to be evaluated.

    The newest is next, and those older than an evaluated one are skipped. A
    checkpoint that cannot be loaded is tried again; meanwhile, and for good
    after `give_up_seconds`, the next one takes its turn. A checkpoint that
    was evaluated, skipped or given up is not returned again; a file that was
    rewritten is a new checkpoint.

    Age only orders checkpoints that are there at the same time. One that
    appears later is new even if its date is older, because the clock of
    another machine may have set that date.

    Times are seconds of one monotonic clock.

    Args:
        settle_seconds: Time for which a file must not change before it is
            read, because it may still be being written.
        retry_seconds: Time between two attempts to load a checkpoint.
        give_up_seconds: Time from the first failure to the last attempt.
    """

    def __init__(
        self,
        *,
        settle_seconds: float,
        retry_seconds: float,
        give_up_seconds: float,
    ) -> None:
        self._settle_seconds = settle_seconds
        self._retry_seconds = retry_seconds
        self._give_up_seconds = give_up_seconds
        self._waits: dict[Checkpoint, _Wait] = {}
        self._settled: set[Checkpoint] = set()

    def __len__(self) -> int:
        """Returns the number of checkpoints still to be evaluated."""
        return len(self._waits)

    def look(self, found: Collection[Checkpoint], now: float) -> None:
        """Updates the checkpoints to those in the folder.

        Args:
            found: All checkpoints in the folder. Pending ones that are not
                among them were deleted or rewritten.
            now: Current time.
        """
        there = set(found)
        self._waits = {
            checkpoint: wait
            for checkpoint, wait in self._waits.items()
            if checkpoint in there
        }
        for checkpoint in there - self._settled - self._waits.keys():
            self._waits[checkpoint] = _Wait(now + self._settle_seconds)

    def next(self, now: float, *, is_final: bool = False) -> Checkpoint | None:
        """Returns the checkpoint to evaluate now; None if none is due.

        Args:
            now: Current time.
            is_final: Whether the job is over, so that files cannot change
                any more.
        """
        due = [
            checkpoint
            for checkpoint, wait in self._waits.items()
            if is_final or wait.due <= now
        ]
        return max(due, key=lambda each: each.rank, default=None)

    def evaluated(self, checkpoint: Checkpoint) -> int:
        """Records an evaluation; returns how many older ones it skips."""
        older = [each for each in self._waits if each.rank <= checkpoint.rank]
        for each in older:
            self._settle(each)
        self._settled.add(checkpoint)
        return sum(each != checkpoint for each in older)

    def failed(
        self, checkpoint: Checkpoint, now: float, *, is_final: bool = False
    ) -> bool:
        """Records that a checkpoint could not be loaded.

        Args:
            checkpoint: The checkpoint.
            now: Current time.
            is_final: Whether the job is over, so that trying again is
                pointless.

        Returns:
            Whether the checkpoint is given up.
        """
        wait = self._waits.setdefault(checkpoint, _Wait(now))
        if wait.first_failure is None:
            wait.first_failure = now
        if is_final or now - wait.first_failure >= self._give_up_seconds:
            self._settle(checkpoint)
            return True
        wait.due = now + self._retry_seconds
        return False

    def _settle(self, checkpoint: Checkpoint) -> None:
        self._waits.pop(checkpoint, None)
        self._settled.add(checkpoint)
