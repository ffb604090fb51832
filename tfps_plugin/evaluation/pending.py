"""Decides which checkpoint is next, and when one is given up."""

import dataclasses
from collections.abc import Collection

from tfps_plugin.evaluation.checkpoint import Checkpoint


@dataclasses.dataclass
class _Wait:
    """What is known of a checkpoint that was not evaluated yet."""

    due: float
    first_failure: float | None = None


class PendingCheckpoints:
    """The checkpoints that were found and are still to be evaluated.

    The youngest is next. Those that are older than an evaluated one are passed
    over. One that cannot be loaded is tried again; meanwhile, and for good
    once its time is up, the next one takes its turn. None is handed out again
    once it was evaluated, passed over or given up; a file that is written
    again is another checkpoint.

    Age orders what is there at one time only. What appears later is new even
    if its date is older: the clock of another machine may have written it.

    Times are seconds of one clock that only goes forward.

    Args:
        settle_seconds: How long a file has to stay as it is before it is
            read. Until then somebody may be writing it.
        retry_seconds: How long to wait between two attempts to load.
        give_up_seconds: How long to try, from the first failure.
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
        """How many are still to be evaluated."""
        return len(self._waits)

    def look(self, found: Collection[Checkpoint], now: float) -> None:
        """Takes what the folder has now.

        Args:
            found: All its checkpoints. One that is pending and not among
                them was deleted, or written again.
            now: The time.
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
        """The checkpoint to evaluate now, None if there is none yet.

        Args:
            now: The time.
            is_final: Whether nobody writes any more, so that there is
                nothing to wait for.
        """
        due = [
            checkpoint
            for checkpoint, wait in self._waits.items()
            if is_final or wait.due <= now
        ]
        return max(due, key=lambda each: each.rank, default=None)

    def evaluated(self, checkpoint: Checkpoint) -> int:
        """Notes that it was; returns how many are passed over with it."""
        older = [each for each in self._waits if each.rank <= checkpoint.rank]
        for each in older:
            self._settle(each)
        self._settled.add(checkpoint)
        return sum(each != checkpoint for each in older)

    def failed(
        self, checkpoint: Checkpoint, now: float, *, is_final: bool = False
    ) -> bool:
        """Notes that it could not be loaded.

        Args:
            checkpoint: Which.
            now: The time.
            is_final: Whether nobody writes any more: it will not get better.

        Returns:
            Whether it is given up.
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
