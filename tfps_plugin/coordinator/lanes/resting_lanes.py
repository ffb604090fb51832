"""Which of the lanes without work is to have the next closure.

Pure: no lock, no thread. `ClosureQueue` puts a lock around it.
"""

import collections
from typing import Generic
from typing import TypeVar

Lane = TypeVar("Lane")


class RestingLanes(Generic[Lane]):
    """The lanes that have nothing to do, by worker.

    The next closure goes to the worker with the most resting lanes, which
    runs the fewest closures; among these to the one that is so for longest,
    so that a program with little to do still uses all workers, and their
    data. Of a worker's own lanes it goes to the one that rests since last:
    a lane that was never needed needs no thread.

    Workers that are paused keep their lanes and are passed over.

    Not thread-safe.
    """

    def __init__(self) -> None:
        """Creates the collection without any lane."""
        self._lanes: dict[int, list[Lane]] = {}
        self._paused: set[int] = set()
        # By the number of resting lanes: workers that may have work.
        self._workers: list[collections.OrderedDict[int, None]] = []

    def add(self, worker_index: int, lane: Lane) -> None:
        """Notes that a lane of the worker has nothing to do."""
        self._unlist(worker_index)
        self._lanes.setdefault(worker_index, []).append(lane)
        self._list(worker_index)

    def take(self) -> tuple[int, Lane] | None:
        """The lane that is to work, and its worker; None if none may."""
        for workers in reversed(self._workers):
            if workers:
                worker_index = next(iter(workers))
                self._unlist(worker_index)
                lane = self._lanes[worker_index].pop()
                self._list(worker_index)
                return worker_index, lane
        return None

    def take_all(self) -> list[Lane]:
        """All lanes, those of paused workers as well; none rests after it."""
        lanes = [lane for lanes in self._lanes.values() for lane in lanes]
        self._lanes.clear()
        self._workers.clear()
        return lanes

    def is_paused(self, worker_index: int) -> bool:
        """Whether the worker is passed over."""
        return worker_index in self._paused

    def pause(self, worker_index: int) -> None:
        """Passes the worker over until `resume`."""
        self._unlist(worker_index)
        self._paused.add(worker_index)

    def resume(self, worker_index: int) -> None:
        """Passes the worker over no longer."""
        self._paused.discard(worker_index)
        self._unlist(worker_index)
        self._list(worker_index)

    def _list(self, worker_index: int) -> None:
        number = len(self._lanes.get(worker_index, ()))
        if not number or worker_index in self._paused:
            return
        while len(self._workers) < number:
            self._workers.append(collections.OrderedDict())
        self._workers[number - 1][worker_index] = None

    def _unlist(self, worker_index: int) -> None:
        number = len(self._lanes.get(worker_index, ()))
        if 0 < number <= len(self._workers):
            self._workers[number - 1].pop(worker_index, None)
