"""Roster of workers: those present, and when to probe the absent ones.

Pure: the caller passes the time, in seconds of any steady clock.
"""

import dataclasses
from collections.abc import Collection

_FIRST_INTERVAL_SECONDS = 0.25
_LAST_INTERVAL_SECONDS = 5.0


@dataclasses.dataclass
class _Absence:
    """Absence of a worker.

    Attributes:
        since: When it began.
        next_probe: When to probe the worker next.
        interval_seconds: From that probe to the one after it.
    """

    since: float
    next_probe: float
    interval_seconds: float = _FIRST_INTERVAL_SECONDS


class Roster:
    """Keeps account of the workers that take part in the job.

    Each worker has a *generation*, the number of times it was readmitted.
    Whatever was built on it in an earlier generation is gone.

    Not thread-safe.
    """

    def __init__(
        self,
        num_workers: int,
        *,
        late: Collection[int] = (),
        now: float = 0.0,
    ) -> None:
        """Creates the roster; all workers are in generation 0.

        Args:
            num_workers: Number of workers.
            late: Indices of workers that are not there yet, and are probed at
                once. All others are present.
            now: The time.
        """
        self._generations = [0] * num_workers
        self._late = set(late)
        # Workers that were removed.
        self._retired: set[int] = set()
        self._absences: dict[int, _Absence] = {
            index: _Absence(since=now, next_probe=now) for index in late
        }

    @property
    def absent(self) -> tuple[int, ...]:
        """Indices of the absent workers, ascending."""
        return tuple(sorted(self._absences))

    @property
    def present(self) -> tuple[int, ...]:
        """Indices of the workers that are present, ascending."""
        return tuple(
            index for index in self.indices if index not in self._absences
        )

    @property
    def indices(self) -> tuple[int, ...]:
        """Indices of the workers that belong to the cluster, ascending."""
        return tuple(
            index
            for index in range(len(self._generations))
            if index not in self._retired
        )

    @property
    def is_empty(self) -> bool:
        """True if all workers are absent."""
        return len(self._absences) == len(self.indices)

    def add(self, worker_index: int, now: float) -> None:
        """Adds a worker that is not there yet, and is probed at once.

        Args:
            worker_index: The next index; or that of a worker that was removed.
            now: The time.
        """
        if worker_index == len(self._generations):
            self._generations.append(0)
        self._retired.discard(worker_index)
        self._late.add(worker_index)
        self._absences[worker_index] = _Absence(since=now, next_probe=now)

    def retire(self, worker_index: int) -> None:
        """Removes an absent worker: it is probed no more."""
        self._absences.pop(worker_index, None)
        self._late.discard(worker_index)
        self._retired.add(worker_index)

    def generation(self, worker_index: int) -> int:
        """Returns the number of times the worker was readmitted."""
        return self._generations[worker_index]

    def is_late(self, worker_index: int) -> bool:
        """Returns whether the worker has never taken part so far."""
        return worker_index in self._late

    def is_present(self, worker_index: int, generation: int) -> bool:
        """Returns whether the worker is present, in that generation."""
        return (
            worker_index not in self._absences
            and worker_index not in self._retired
            and self._generations[worker_index] == generation
        )

    def lose(self, worker_index: int, generation: int, now: float) -> bool:
        """Records that a worker was lost.

        Args:
            worker_index: The worker.
            generation: The generation that is lost; the loss of an earlier
                one is old news.
            now: The time.

        Returns:
            Whether this was news.
        """
        if not self.is_present(worker_index, generation):
            return False
        self._absences[worker_index] = _Absence(
            since=now, next_probe=now + _FIRST_INTERVAL_SECONDS
        )
        return True

    def due(self, now: float) -> tuple[int, ...]:
        """Returns the indices of the absent workers to probe now, ascending."""
        return tuple(
            index
            for index in self.absent
            if self._absences[index].next_probe <= now
        )

    def seconds_until_due(self, now: float) -> float | None:
        """Returns the time until the next probe; None if all are present."""
        if not self._absences:
            return None
        soonest = min(each.next_probe for each in self._absences.values())
        return max(0.0, soonest - now)

    def away_seconds(self, worker_index: int, now: float) -> float:
        """Returns how long a worker has been absent; 0: it is present."""
        absence = self._absences.get(worker_index)
        return 0.0 if absence is None else now - absence.since

    def no_answer(self, worker_index: int, now: float) -> None:
        """Records that an absent worker did not answer a probe."""
        absence = self._absences[worker_index]
        absence.next_probe = now + absence.interval_seconds
        absence.interval_seconds = min(
            _LAST_INTERVAL_SECONDS, 1.5 * absence.interval_seconds
        )

    def admit(self, worker_index: int, now: float) -> float:
        """Records that an absent worker is present, in a new generation.

        Returns:
            How long it was absent, in seconds.
        """
        absence = self._absences.pop(worker_index)
        self._late.discard(worker_index)
        self._generations[worker_index] += 1
        return now - absence.since
