"""Ledger of the splits of an input: waiting, being read, or done. Pure.

A split is a part of the input that one worker reads at a time: a file, a range
of rows, or the whole share of one worker. Workers take splits on demand, so
that a slow worker reads fewer of them and does not delay the others.
"""

import collections
import enum
from collections.abc import Collection
from collections.abc import Sequence

from tfps_plugin import errors


class Visitation(enum.Enum):
    """Treatment of a split whose reader was lost.

    Without failures, every split is read exactly once in either case.
    """

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"

    @classmethod
    def parse(cls, value: "str | Visitation") -> "Visitation":
        """Returns the visitation with a name.

        Raises:
            InputError: If no visitation has this name.
        """
        try:
            return cls(value)
        except ValueError:
            raise errors.InputError(
                "visitation decides how often data is seen when a worker is "
                "lost. Expected 'at_least_once' (its split is read again from "
                "the beginning) or 'at_most_once' (the rest of its split is "
                f"left out). Received: visitation={value!r}"
            ) from None


class SplitLedger:
    """Ledger of the splits of one epoch.

    Threading: not safe from several threads; the owner must hold a lock.
    """

    def __init__(
        self,
        num_splits: int,
        visitation: Visitation = Visitation.AT_LEAST_ONCE,
        *,
        preferred_workers: Sequence[int] | None = None,
        done: Collection[int] = (),
    ) -> None:
        """Begins an epoch.

        Args:
            num_splits: Number of splits.
            visitation: Treatment of a split whose reader is lost.
            preferred_workers: For each split, the worker that should read it.
                Others take it only when none of their own splits waits. None
                for no preferences.
            done: Splits that need not be read, from `done` of an earlier
                program in the same epoch.
        """
        self._num_splits = num_splits
        self._visitation = visitation
        self._preferred_workers = preferred_workers
        self._waiting = collections.deque(
            split for split in range(num_splits) if split not in done
        )
        self._held: set[int] = set()

    @property
    def rereads(self) -> bool:
        """Returns whether a lost split is read again."""
        return self._visitation is Visitation.AT_LEAST_ONCE

    @property
    def num_splits(self) -> int:
        """Number of splits."""
        return self._num_splits

    @property
    def done(self) -> list[int]:
        """Splits that a program that resumes from here need not read.

        With at-most-once visitation, they include those being read now.
        """
        to_read = set(self._waiting)
        if self.rereads:
            to_read |= self._held
        return [s for s in range(self._num_splits) if s not in to_read]

    @property
    def is_over(self) -> bool:
        """Returns whether no split waits or is being read."""
        return not self._waiting and not self._held

    def take(self, worker_index: int) -> int | None:
        """Hands out a split.

        Args:
            worker_index: Index of the worker that reads it.

        Returns:
            The number of the split; None if no split waits.
        """
        if not self._waiting:
            return None
        split = self._best_for(worker_index)
        self._waiting.remove(split)
        self._held.add(split)
        return split

    def _best_for(self, worker_index: int) -> int:
        if self._preferred_workers is not None:
            for split in self._waiting:
                if self._preferred_workers[split] == worker_index:
                    return split
        return self._waiting[0]

    def finish(self, split: int) -> None:
        """Records that a split was read to the end."""
        if split not in self._held:
            raise errors.InternalError(
                "A split was returned that no worker was reading. Expected "
                f"one of {sorted(self._held)}. Received: split={split}. "
                "Please report this."
            )
        self._held.remove(split)

    def add(self, worker_index: int) -> int:
        """Adds a split; returns its number.

        Args:
            worker_index: The worker that should read it.
        """
        split = self._num_splits
        self._num_splits += 1
        if self._preferred_workers is not None:
            self._preferred_workers = [*self._preferred_workers, worker_index]
        self._waiting.append(split)
        return split

    def hand_on(self, split: int) -> None:
        """Records that another worker is to read the rest of a split."""
        self.finish(split)
        self._waiting.appendleft(split)

    def lose(self, split: int) -> None:
        """Records that the reader of a split was lost."""
        self.finish(split)
        if self.rereads:
            # First in the queue, so that it does not delay the epoch's end.
            self._waiting.appendleft(split)
