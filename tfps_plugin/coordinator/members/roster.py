"""Which workers take part, and when to ask the absent ones again.

Pure: the caller says what time it is, in seconds of any steady clock.
"""

import dataclasses
from collections.abc import Collection

_FIRST_INTERVAL_SECONDS = 0.25
_LAST_INTERVAL_SECONDS = 5.0


@dataclasses.dataclass
class _Absence:
    """Since when a worker is away, and when it is asked next."""

    since: float
    next_probe: float
    interval_seconds: float = _FIRST_INTERVAL_SECONDS


class Roster:
    """Keeps account of which workers take part in the job.

    Each worker has a *generation*: how often it was admitted. What was built
    on it in an earlier generation is gone.

    Not thread-safe.
    """

    def __init__(
        self,
        num_workers: int,
        *,
        late: Collection[int] = (),
        now: float = 0.0,
    ) -> None:
        """Creates the roster, in generation 0.

        Args:
            num_workers: How many workers there are.
            late: Indices of those that are not there yet, and are asked at
                once; all others are present.
            now: The time.
        """
        self._generations = [0] * num_workers
        self._late = set(late)
        self._absences: dict[int, _Absence] = {
            index: _Absence(since=now, next_probe=now) for index in late
        }
        self._nobody_since: float | None = None
        if len(self._absences) == num_workers:
            self._nobody_since = now

    @property
    def absent(self) -> tuple[int, ...]:
        """Indices of the workers that are away, ascending."""
        return tuple(sorted(self._absences))

    @property
    def present(self) -> tuple[int, ...]:
        """Indices of the workers that take part, ascending."""
        return tuple(
            index
            for index in range(len(self._generations))
            if index not in self._absences
        )

    @property
    def nobody_since(self) -> float | None:
        """Since when every worker is away; None while one is present."""
        return self._nobody_since

    def generation(self, worker_index: int) -> int:
        """How often the worker was re-admitted."""
        return self._generations[worker_index]

    def is_late(self, worker_index: int) -> bool:
        """Returns whether the worker has never taken part so far."""
        return worker_index in self._late

    def is_present(self, worker_index: int, generation: int) -> bool:
        """Whether the worker takes part, still in that generation."""
        return (
            worker_index not in self._absences
            and self._generations[worker_index] == generation
        )

    def lose(self, worker_index: int, generation: int, now: float) -> bool:
        """Notes that a worker was lost.

        Args:
            worker_index: Which worker.
            generation: The generation that was found lost; news of an earlier
                one are old.
            now: The time.

        Returns:
            Whether this was news.
        """
        if not self.is_present(worker_index, generation):
            return False
        self._absences[worker_index] = _Absence(
            since=now, next_probe=now + _FIRST_INTERVAL_SECONDS
        )
        if len(self._absences) == len(self._generations):
            self._nobody_since = now
        return True

    def due(self, now: float) -> tuple[int, ...]:
        """Indices of the absent workers to be asked now, ascending."""
        return tuple(
            index
            for index in self.absent
            if self._absences[index].next_probe <= now
        )

    def seconds_until_due(self, now: float) -> float | None:
        """How long until one is to be asked; None while all are present."""
        if not self._absences:
            return None
        soonest = min(each.next_probe for each in self._absences.values())
        return max(0.0, soonest - now)

    def no_answer(self, worker_index: int, now: float) -> None:
        """Notes that an absent worker was asked in vain."""
        absence = self._absences[worker_index]
        absence.next_probe = now + absence.interval_seconds
        absence.interval_seconds = min(
            _LAST_INTERVAL_SECONDS, 1.5 * absence.interval_seconds
        )

    def admit(self, worker_index: int, now: float) -> float:
        """Notes that an absent worker takes part, one generation on.

        Returns:
            How long it was away, in seconds.
        """
        absence = self._absences.pop(worker_index)
        self._late.discard(worker_index)
        self._generations[worker_index] += 1
        self._nobody_since = None
        return now - absence.since
