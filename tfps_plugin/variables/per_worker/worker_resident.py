"""One object per worker, built there when first needed."""

import dataclasses
import threading
import weakref
from collections.abc import Callable
from typing import Generic
from typing import Protocol
from typing import TypeVar

import tensorflow as tf

from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext

T = TypeVar("T")


class Resident(Protocol):
    """What has something on workers."""

    def forget_worker(self, worker_index: int) -> None:
        """Drops what a lost worker had."""


_all_residents: "weakref.WeakSet[Resident]" = weakref.WeakSet()


@dataclasses.dataclass
class _Seat(Generic[T]):
    """What one worker, or one of its lanes, has of a resident."""

    lock: threading.Lock
    worker_index: int
    generation: int = -1
    value: T | None = None


class WorkerResident(Generic[T]):
    """Something every worker has its own of, such as an iterator or a table.

    It is built on a lane's own thread the first time that lane asks, and
    built again when the worker was lost and came back: whatever lived on the
    earlier incarnation is gone.

    A lane that still runs what it began in an earlier generation gets nothing
    then: the new value is for others, who may be using it. Its closure is run
    again.

    Guarantees: `build` runs at most once at a time for each worker (for each
    lane with `per_lane`); different workers never wait for each other. If it
    raises, the next `get` tries again.
    Guarded by `_lock`: the dictionary of seats. Guarded by each seat's own
    lock: its value. `build` is called with the seat's lock held, never with
    `_lock`.
    """

    def __init__(
        self, build: Callable[[DispatchContext], T], *, per_lane: bool
    ) -> None:
        """Creates the resident; builds nothing yet.

        Args:
            build: Makes the object for one worker. Called on a lane's thread,
                with the dispatch context that it is for.
            per_lane: Whether each lane of a worker has its own.
        """
        self._build = build
        self._per_lane = per_lane
        self._lock = threading.Lock()
        self._seats: dict[int, _Seat[T]] = {}
        register(self)

    def get(self) -> T:
        """What the worker of the current dispatch context has.

        Raises:
            InternalError: If this thread dispatches to no worker.
            AbortedError: TensorFlow's, if the worker was lost and came back
                since this thread dispatched to it, and has a new one by now.
                The coordinator takes it as any failure on a lost worker, and
                runs the closure again.
        """
        context = dispatch_context.required()
        key = context.lane_index if self._per_lane else context.worker_index
        with self._lock:
            seat = self._seats.get(key)
            if seat is None:
                seat = _Seat(threading.Lock(), context.worker_index)
                self._seats[key] = seat
        with seat.lock:
            require_same_life(
                context.worker_index, seat.generation, context.generation
            )
            if seat.generation < context.generation:
                seat.value = self._build(context)
                seat.generation = context.generation
            return seat.value  # type: ignore[return-value]

    def existing(self) -> list[T]:
        """What workers have now, in no particular order of time."""
        return [*self.existing_by_key().values()]

    def existing_by_key(self) -> dict[int, T]:
        """What workers have now, by their index; or by that of the lane."""
        with self._lock:
            seats = sorted(self._seats.items())
        return {
            key: seat.value  # type: ignore[misc]
            for key, seat in seats
            if seat.generation >= 0
        }

    def forget(self) -> None:
        """Drops every worker's; each is built anew when next needed."""
        with self._lock:
            self._seats.clear()

    def forget_key(self, key: int) -> None:
        """Drops what a worker, or with `per_lane` a lane, has."""
        with self._lock:
            self._seats.pop(key, None)

    def forget_worker(self, worker_index: int) -> None:
        """Drops what the given worker has."""
        with self._lock:
            self._seats = {
                key: seat
                for key, seat in self._seats.items()
                if seat.worker_index != worker_index
            }


def register(resident: Resident) -> None:
    """Has `forget_worker` tell it of lost workers, for as long as it lives."""
    _all_residents.add(resident)


def require_same_life(
    worker_index: int, generation: int, own_generation: int
) -> None:
    """Refuses a closure of an earlier life of its worker what a later one has.

    Args:
        worker_index: The worker.
        generation: The life of it that has the thing asked for.
        own_generation: The life in which the closure that asks was begun.

    Raises:
        AbortedError: TensorFlow's, if the closure's is the earlier one.
    """
    if generation > own_generation:
        raise tf.errors.AbortedError(
            None,
            None,
            f"Worker {worker_index} was lost and came back while a closure "
            f"ran on it. Expected a closure of generation {generation}. "
            f"Received: generation={own_generation}",
        )


def forget_worker(worker_index: int) -> None:
    """Drops what a lost worker had of every resident of this process."""
    for resident in list(_all_residents):
        resident.forget_worker(worker_index)
