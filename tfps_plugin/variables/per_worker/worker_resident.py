"""Objects of which each worker has its own, built when first needed."""

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
from tfps_plugin.cluster.chief import connection
from tfps_plugin.cluster.chief.connection import Connection

T = TypeVar("T")


class Resident(Protocol):
    """An object that keeps something on workers."""

    def release_worker(self, worker_index: int) -> None:
        """Takes over what a worker has that is about to leave."""

    def forget_worker(self, worker_index: int) -> None:
        """Drops everything that a lost worker had."""


class Residents:
    """All residents of one connection; one of its parts.

    Guarded by `_lock`: the residents, which it does not keep alive.
    Never call while holding the lock: a resident.

    Attributes:
        taking_over: Held while the chief takes over what workers have counted,
            so that nothing is taken over twice. Taken before `_lock`, and
            before the locks of residents.
    """

    def __init__(self) -> None:
        """Begins without any resident."""
        self.taking_over = threading.RLock()
        self._lock = threading.Lock()
        self._residents: weakref.WeakSet[Resident] = weakref.WeakSet()

    def add(self, resident: Resident) -> None:
        """Notifies a resident of lost workers, for as long as it lives."""
        with self._lock:
            self._residents.add(resident)

    def remove(self, resident: Resident) -> None:
        """Undoes `add`; does nothing for a resident that is not known."""
        with self._lock:
            self._residents.discard(resident)

    def release_worker(self, worker_index: int) -> None:
        """Takes over what a worker has, of every resident.

        Args:
            worker_index: A worker that runs nothing, and is about to leave.
        """
        with self._lock:
            residents = list(self._residents)
        for resident in residents:
            resident.release_worker(worker_index)

    def forget_worker(self, worker_index: int) -> None:
        """Drops everything that a lost worker had of every resident."""
        with self._lock:
            residents = list(self._residents)
        for resident in residents:
            resident.forget_worker(worker_index)


@dataclasses.dataclass
class _Seat(Generic[T]):
    """The value that one worker, or one of its lanes, has of a resident."""

    lock: threading.Lock
    worker_index: int
    generation: int = -1
    # Stands for the coordinator that counts the generation.
    counted_by: object = None
    value: T | None = None


class WorkerResident(Generic[T]):
    """An object that each worker has for itself: an iterator, a table.

    A lane builds it on its own thread when it first asks for it, and again
    after the worker was lost and came back, because everything on the earlier
    incarnation is gone. It is also built again on a new connection: a table
    that was made before the strategy may outlive several of them.

    A lane that still runs a closure of an earlier generation then gets an
    error: other lanes may be using the new value. Its closure is run again.

    Guarantees: `build` runs at most once at a time for each worker (for each
    lane with `per_lane`); different workers never wait for each other. If it
    raises, the next `get` tries again. No connection sees the values of
    another; coordinators of one connection share them.
    Guarded by `_lock`: the connection, the dictionary of seats. Guarded by
    each seat's own lock: its value. `build` is called with the seat's lock
    held, never with `_lock`.
    """

    def __init__(
        self,
        build: Callable[[DispatchContext], T],
        *,
        per_lane: bool,
        take_over: Callable[[int, T], None] | None = None,
    ) -> None:
        """Creates the resident; builds no value yet.

        Args:
            build: Makes the object for one worker. Called on a lane's thread,
                with the lane's dispatch context.
            per_lane: Whether each lane of a worker has its own.
            take_over: Called with the key and the value of a worker, or of a
                lane, that runs nothing and is about to leave. Called with
                `Residents.taking_over`. None: nothing is worth keeping.
        """
        self._take_over = take_over
        self._build = build
        self._per_lane = per_lane
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._residents: Residents | None = None
        self._seats: dict[int, _Seat[T]] = {}

    def get(self) -> T:
        """Returns the value of the worker of the current dispatch context.

        Raises:
            InternalError: If this thread dispatches to no worker.
            AbortedError: TensorFlow's, if the worker was lost and came back
                since this thread dispatched to it, and has a new one by now.
                The coordinator treats it as any failure on a lost worker, and
                runs the closure again.
        """
        context = dispatch_context.required()
        key = context.lane_index if self._per_lane else context.worker_index
        with self._lock:
            self._move_to(connection.present())
            seat = self._seats.get(key)
            if seat is None:
                seat = _Seat(threading.Lock(), context.worker_index)
                self._seats[key] = seat
        with seat.lock:
            if (
                seat.counted_by is not context.counted_by
                and seat.generation >= 0
            ):
                # Each coordinator counts generations from 0. When one loses
                # the worker, it makes `Residents` drop all values.
                seat.generation = context.generation
            seat.counted_by = context.counted_by
            require_same_life(
                context.worker_index, seat.generation, context.generation
            )
            if seat.generation < context.generation:
                seat.value = self._build(context)
                seat.generation = context.generation
            return seat.value  # type: ignore[return-value]

    def existing(self) -> list[T]:
        """Returns the values that workers have now, by ascending key."""
        return [*self.existing_by_key().values()]

    def existing_by_key(self) -> dict[int, T]:
        """Returns the values by index of the worker, or of the lane."""
        with self._lock:
            if self._connection is None or self._connection.is_over:
                return {}
            seats = sorted(self._seats.items())
        return {
            key: seat.value  # type: ignore[misc]
            for key, seat in seats
            if seat.generation >= 0
        }

    def forget(self) -> None:
        """Drops all values; each is built again when next needed."""
        with self._lock:
            self._seats.clear()

    def forget_key(self, key: int) -> None:
        """Drops the value of a worker, or with `per_lane` of a lane."""
        with self._lock:
            self._seats.pop(key, None)

    def release_worker(self, worker_index: int) -> None:
        """Takes over the values of a worker that is about to leave."""
        residents = self._residents
        if self._take_over is None or residents is None:
            return
        with residents.taking_over:
            with self._lock:
                keys = {
                    key
                    for key, seat in self._seats.items()
                    if seat.worker_index == worker_index
                }
            for key, value in self.existing_by_key().items():
                if key in keys:
                    self._take_over(key, value)
                    self.forget_key(key)

    def forget_worker(self, worker_index: int) -> None:
        """Drops the values of a worker."""
        with self._lock:
            self._seats = {
                key: seat
                for key, seat in self._seats.items()
                if seat.worker_index != worker_index
            }

    def _move_to(self, present: Connection) -> None:
        """Starts over if the connection is a new one; needs `_lock`."""
        if self._connection is present:
            return
        if self._residents is not None:
            # News from the earlier cluster is about other workers.
            self._residents.remove(self)
        self._connection = present
        self._residents = present.part(Residents)
        self._residents.add(self)
        self._seats = {}


def require_same_life(
    worker_index: int, generation: int, own_generation: int
) -> None:
    """Refuses a closure that began in an earlier generation of its worker.

    Args:
        worker_index: The worker.
        generation: The generation that the requested value belongs to.
        own_generation: The generation in which the closure began.

    Raises:
        AbortedError: TensorFlow's, if the closure's generation is the earlier.
    """
    if generation > own_generation:
        raise tf.errors.AbortedError(
            None,
            None,
            f"Worker {worker_index} was lost and came back while a closure "
            f"ran on it. Expected a closure of generation {generation}. "
            f"Received: generation={own_generation}",
        )
