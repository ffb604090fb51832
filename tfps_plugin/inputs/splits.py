"""Which splits of the input wait, are being read, and were read. Pure.

A split is a part of the input that one worker reads at a time: a file, a range
of rows, or the whole share of one worker. Splits are handed out on demand, so
that a slow worker reads fewer of them and holds nobody up.
"""

import collections
import enum
from collections.abc import Collection
from collections.abc import Sequence

from tfps_plugin import errors


class Visitation(enum.Enum):
    """What becomes of a split whose reader was lost.

    Without failures every split is read exactly once, either way.
    """

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"

    @classmethod
    def parse(cls, value: "str | Visitation") -> "Visitation":
        """The visitation of that name.

        Raises:
            InputError: If there is none.
        """
        try:
            return cls(value)
        except ValueError:
            raise errors.InputError(
                "How often data is seen when a worker is lost is expected to "
                "be 'at_least_once' (what it was reading is read again, from "
                "the beginning of its split) or 'at_most_once' (the rest of "
                f"it is left out). Received: visitation={value!r}"
            ) from None


class SplitLedger:
    """Keeps account of the splits of one epoch.

    Not thread-safe: whoever shares it puts a lock around it.
    """

    def __init__(
        self,
        num_splits: int,
        visitation: Visitation = Visitation.AT_LEAST_ONCE,
        *,
        preferred_workers: Sequence[int] | None = None,
        done: Collection[int] = (),
    ) -> None:
        """Begins an epoch in which no split was read.

        Args:
            num_splits: How many splits there are.
            visitation: What becomes of a split whose reader is lost.
            preferred_workers: For each split the worker that should read it
                if it can; others take it only when they have nothing left to
                prefer. None: whoever asks first.
            done: Splits that need not be read: `done` of an earlier program
                that was in the same epoch.
        """
        self._num_splits = num_splits
        self._visitation = visitation
        self._preferred_workers = preferred_workers
        self._waiting = collections.deque(
            split for split in range(num_splits) if split not in done
        )
        self._held: set[int] = set()
        self._num_read = num_splits - len(self._waiting)
        self._left_out: list[int] = []

    @property
    def rereads(self) -> bool:
        """Whether a split that was lost is read again."""
        return self._visitation is Visitation.AT_LEAST_ONCE

    @property
    def num_read(self) -> int:
        """How many splits were read to their end."""
        return self._num_read

    @property
    def num_splits(self) -> int:
        """How many splits there are."""
        return self._num_splits

    @property
    def done(self) -> list[int]:
        """Splits that a program which goes on from here need not read.

        Where nothing may be read twice, those that are being read are among
        them.
        """
        to_read = set(self._waiting)
        if self.rereads:
            to_read |= self._held
        return [s for s in range(self._num_splits) if s not in to_read]

    @property
    def left_out(self) -> list[int]:
        """Splits that were not read to their end and will not be."""
        return list(self._left_out)

    @property
    def has_waiting(self) -> bool:
        """Whether `take` would give a split."""
        return bool(self._waiting)

    @property
    def is_over(self) -> bool:
        """Whether no split waits or is being read."""
        return not self._waiting and not self._held

    def take(self, worker_index: int) -> int | None:
        """Begins to read a split.

        Args:
            worker_index: Who reads it.

        Returns:
            The split's number; None if no split waits.
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
        """Ends a split that was read to its end."""
        self._release(split)
        self._num_read += 1

    def lose(self, split: int) -> None:
        """Ends the reading of a split whose reader was lost."""
        self._release(split)
        if self.rereads:
            # Before all others: what waits longest holds up the epoch's end.
            self._waiting.appendleft(split)
        else:
            self._left_out.append(split)

    def _release(self, split: int) -> None:
        if split not in self._held:
            raise errors.InternalError(
                "A split was given back that nobody reads. Please report "
                f"this. Received: split={split}"
            )
        self._held.remove(split)
