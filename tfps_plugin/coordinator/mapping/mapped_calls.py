"""Calls of one function with each of many items, a few at a time."""

import collections
import queue
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.coordinator.closures.closure_queue import WAKE_UP_SECONDS
from tfps_plugin.coordinator.closures.remote_value import RemoteValue

# Parts of an item that become tensors. A `tf.function` would be traced anew for
# each number and each text.
_PYTHON_VALUES = (bool, int, float, complex, str, bytes, np.generic, np.ndarray)
# Items for each function that runs at a time: one runs, and others wait for
# their turn, or for the slow one whose result comes first.
_ITEMS_A_LANE = 4


class Scheduler(Protocol):
    """The part of a coordinator that calls need."""

    @property
    def num_lanes(self) -> int:
        """Number of functions that run at a time."""

    def schedule(
        self, fn: Callable[..., Any], args: tuple[Any, ...]
    ) -> RemoteValue:
        """Schedules a function to run on a worker."""


class _Call(NamedTuple):
    item: Any
    value: RemoteValue


class MappedCalls(Iterator[tuple[Any, Any]]):
    """Items and the results of a function for them, as they are asked for.

    The first calls are scheduled at once, and another one whenever a result is
    taken. So only `max_in_flight` items and results are in memory.

    Threading: one thread uses it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        fn: Callable[..., Any],
        items: Iterable[Any],
        *,
        ordered: bool = True,
        max_in_flight: int | None = None,
        verbose: int = 0,
    ) -> None:
        """Schedules the first calls.

        Args:
            scheduler: A coordinator.
            fn: Called with one item on a worker; may run more than once.
            items: The items.
            ordered: Whether results come in the order of the items, or as they
                are completed.
            max_in_flight: Number of items to have scheduled; None: four for
                each function that runs at a time.
            verbose: 1 for a progress bar, 0 for none.

        Raises:
            TypeError: If `items` is not iterable, or `fn` not callable.
            ValueError: If `max_in_flight` or `verbose` is out of range.
        """
        _require_arguments(fn, items, max_in_flight, verbose)
        self._scheduler = scheduler
        self._fn = fn
        self._is_traced = isinstance(
            fn,
            tf.types.experimental.PolymorphicFunction
            | tf.types.experimental.ConcreteFunction,
        )
        self._items = iter(items)
        self._ordered = ordered
        self._most = max_in_flight or _ITEMS_A_LANE * scheduler.num_lanes
        self._calls: collections.deque[_Call] = collections.deque()
        self._ended: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._num_running = 0
        self._num_done = 0
        self._progress = (
            keras.utils.Progbar(_length(items), unit_name="item")
            if verbose
            else None
        )
        self._schedule_more()

    def __next__(self) -> tuple[Any, Any]:
        """Waits for the next result.

        Returns:
            An item, and its result with NumPy arrays in place of tensors.

        Raises:
            StopIteration: After the last one.
            BaseException: The exception of the function, or of the items.
        """
        while self._num_running:
            call = self._next_ended()
            self._num_running -= 1
            try:
                result = call.value.fetch()
            except errors.WorkerLostError:
                if call.value.error is not None:
                    raise
                # The function was completed, and its result is lost.
                self._schedule(call.item, is_next=True)
                continue
            self._num_done += 1
            if self._progress is not None:
                self._progress.update(self._num_done, finalize=False)
            self._schedule_more()
            return call.item, result
        if self._progress is not None:
            self._progress.target = self._num_done
            self._progress.update(self._num_done, finalize=True)
            self._progress = None
        raise StopIteration

    def _schedule_more(self) -> None:
        while self._num_running < self._most:
            try:
                item = next(self._items)
            except StopIteration:
                return
            self._schedule(item)

    def _schedule(self, item: Any, *, is_next: bool = False) -> None:
        argument = (
            tf.nest.map_structure(_as_tensor, item) if self._is_traced else item
        )
        call = _Call(item, self._scheduler.schedule(self._fn, (argument,)))
        self._num_running += 1
        if not self._ordered:
            call.value.on_ended(lambda: self._ended.put(call))
        elif is_next:
            self._calls.appendleft(call)
        else:
            self._calls.append(call)

    def _next_ended(self) -> _Call:
        if self._ordered:
            # Fetching its result waits.
            return self._calls.popleft()
        while True:
            try:
                # Every call ends, by deadlines of the coordinator. Ctrl-C ends
                # the wait between two of these.
                return self._ended.get(timeout=WAKE_UP_SECONDS)
            except queue.Empty:
                continue


def size_of(item: Any) -> int:
    """Returns the number of examples of an item.

    Args:
        item: A nested structure of tensors or arrays.

    Returns:
        The size of their first axis.

    Raises:
        ValueError: If there is none, or not the same one everywhere.
    """
    sizes = {_num_rows(leaf) for leaf in tf.nest.flatten(item)} - {None}
    if len(sizes) != 1:
        raise ValueError(
            "A mean weighs the results of items by their numbers of examples. "
            "Expected items whose arrays have the same number of rows. "
            f"Received: an item with arrays of {sorted(sizes) or 'no'} rows. "
            "Pass weight=, a function of an item that returns its weight."
        )
    (size,) = sizes
    return int(size)


def _num_rows(leaf: Any) -> Any:
    if isinstance(leaf, tf.RaggedTensor):
        return int(leaf.nrows())
    if isinstance(leaf, tf.SparseTensor):
        return int(leaf.dense_shape[0])
    shape: Any = getattr(leaf, "shape", ())
    return int(shape[0]) if len(shape) else None


def _as_tensor(leaf: Any) -> Any:
    """Returns a tensor, as a dataset has it."""
    if isinstance(leaf, _PYTHON_VALUES):
        return tf.convert_to_tensor(leaf)
    return leaf


def _length(items: Any) -> int | None:
    """Returns the number of items, if they know it."""
    try:
        return len(items)
    except TypeError:
        return None


def _require_arguments(
    fn: Any, items: Any, max_in_flight: Any, verbose: Any
) -> None:
    if not callable(fn):
        raise TypeError(
            "coordinator.map() and reduce() call fn with each item. Expected a "
            f"tf.function or a Python callable. Received: fn={fn!r}. Pass the "
            "function itself, and not what it returns."
        )
    if not isinstance(items, Iterable):
        raise TypeError(
            "coordinator.map() and reduce() take items one by one. Expected a "
            "list, a generator, a tf.data.Dataset or another iterable. "
            f"Received: items={items!r}. Put a single item into a list."
        )
    if max_in_flight is not None and (
        isinstance(max_in_flight, bool)
        or not isinstance(max_in_flight, int)
        or max_in_flight < 1
    ):
        raise ValueError(
            "coordinator.map() and reduce() have max_in_flight items scheduled "
            "at a time. Expected an integer of at least 1, or None. Received: "
            f"max_in_flight={max_in_flight!r}. Leave it out for four items for "
            "each function that the workers run at a time."
        )
    if verbose not in (0, 1):
        raise ValueError(
            "coordinator.map() and reduce() show a progress bar by verbose. "
            f"Expected 0 or 1. Received: verbose={verbose!r}. Pass verbose=1 "
            "for the bar, or leave it out for none."
        )
