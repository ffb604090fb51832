"""Idle lanes, and the choice of the one that runs the next closure.

Pure: no lock, no thread. `LaneScheduler` uses it under the queue's lock.
"""

import collections
from typing import Generic
from typing import TypeVar

Lane = TypeVar("Lane")


class IdleLanes(Generic[Lane]):
    """Keeps the idle lanes of each worker, and picks the next one.

    The next closure goes to the worker with the most idle lanes, because it
    runs the fewest closures. Among equals it goes to the worker that has been
    at that number for longest, so a program with little work still uses all
    workers and their data. Of a worker's lanes it goes to the one that became
    idle last, so that lanes which are never needed need no thread. A closure
    that is bound to a worker gets the next lane of that worker.

    Paused workers keep their lanes but are not picked. Workers that are being
    drained are picked for closures that are bound to them alone.

    Not thread-safe.
    """

    def __init__(self) -> None:
        """Creates an empty collection."""
        self._lanes: dict[int, list[Lane]] = {}
        self._paused: set[int] = set()
        self._drained: set[int] = set()
        # Workers that may be picked, by number of idle lanes - 1.
        self._workers: list[collections.OrderedDict[int, None]] = []

    def add(self, worker_index: int, lane: Lane) -> None:
        """Adds an idle lane of a worker."""
        self._unlist(worker_index)
        self._lanes.setdefault(worker_index, []).append(lane)
        self._list(worker_index)

    def take(self) -> tuple[int, Lane] | None:
        """Removes and returns the next lane with its worker, if any."""
        for workers in reversed(self._workers):
            if workers:
                worker_index = next(iter(workers))
                return worker_index, self._pop(worker_index)
        return None

    def take_of(self, worker_index: int) -> Lane | None:
        """Removes and returns the next lane of one worker, if any."""
        if worker_index in self._paused or not self._lanes.get(worker_index):
            return None
        return self._pop(worker_index)

    def take_all(self) -> list[Lane]:
        """Removes and returns all lanes, including those of paused workers."""
        lanes = [lane for lanes in self._lanes.values() for lane in lanes]
        self._lanes.clear()
        self._workers.clear()
        return lanes

    def is_paused(self, worker_index: int) -> bool:
        """Returns whether the worker is paused."""
        return worker_index in self._paused

    @property
    def are_drained(self) -> bool:
        """True if any worker is being drained."""
        return bool(self._drained)

    def is_drained(self, worker_index: int) -> bool:
        """Returns whether the worker is being drained."""
        return worker_index in self._drained

    def pause(self, worker_index: int) -> None:
        """Picks no lane of the worker until `resume`."""
        self._unlist(worker_index)
        self._paused.add(worker_index)

    def drain(self, worker_index: int) -> None:
        """Picks lanes of the worker for its bound closures, until `resume`."""
        self._unlist(worker_index)
        self._drained.add(worker_index)

    def resume(self, worker_index: int) -> None:
        """Picks lanes of the worker again."""
        self._paused.discard(worker_index)
        self._drained.discard(worker_index)
        self._unlist(worker_index)
        self._list(worker_index)

    def _pop(self, worker_index: int) -> Lane:
        self._unlist(worker_index)
        lane = self._lanes[worker_index].pop()
        self._list(worker_index)
        return lane

    def _list(self, worker_index: int) -> None:
        number = len(self._lanes.get(worker_index, ()))
        if not number or worker_index in self._paused | self._drained:
            return
        while len(self._workers) < number:
            self._workers.append(collections.OrderedDict())
        self._workers[number - 1][worker_index] = None

    def _unlist(self, worker_index: int) -> None:
        number = len(self._lanes.get(worker_index, ()))
        if 0 < number <= len(self._workers):
            self._workers[number - 1].pop(worker_index, None)
