"""Reader of splits: gives every worker the iterator of its current split."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.cluster.chief import connection
from tfps_plugin.inputs.splits import SplitLedger
from tfps_plugin.variables.per_worker import worker_resident
from tfps_plugin.variables.per_worker.worker_resident import Residents

# Interval at which a waiting lane checks whether it still needs a split.
_WAKE_UP_SECONDS = 1.0


@dataclasses.dataclass(eq=False)
class Share:
    """Split that one worker reads, with all of its lanes.

    Attributes:
        split: Number of the split.
        worker_index: Index of the worker.
        generation: Generation of that worker when it took the split.
        iterator: Iterator over the elements, on that worker.
        is_infinite: Whether it repeats without end; it then ends only if
            there is nothing to repeat.
        has_given: Whether any step was made with its elements.
    """

    split: int
    worker_index: int
    generation: int
    iterator: Any = None
    is_infinite: bool = False
    has_given: bool = False

    def __post_init__(self) -> None:
        self._building = threading.Lock()
        self._is_exhausted = False
        self._num_readers = 0
        self._counting = threading.Lock()
        self._num_read: int | None = 0

    def exhausted(self) -> None:
        """Records that the iterator has reached its end."""
        self._is_exhausted = True

    def count(self, num_elements: int | None) -> None:
        """Records that elements were taken from the iterator.

        Args:
            num_elements: Their number; None if nobody knows it.
        """
        with self._counting:
            if num_elements is None or self._num_read is None:
                self._num_read = None
            else:
                self._num_read += num_elements


# Called with a split that was read to the end, or whose reader was lost.
OnShare = Callable[[Share], None]


def _nothing(share: Share) -> None:
    del share


class SplitReader:
    """Splits of one input, handed out to the workers that read them.

    A closure asks for the share of the worker that it runs on:

    ```python
    with reader.reading() as share:
        if share is not None:
            ...  # share.iterator
    ```

    The first closure takes a split and creates its iterator; once that is
    exhausted, the next closure takes another split. If no split waits but
    some are still being read, a closure waits while it is wanted, because a
    split may be lost and have to be read again.

    A worker that leaves hands its split on: another one reads the rest.

    Guarantees: a split that was not lost, or handed on, is read by one worker.
    A split is
    lost if its worker is lost or one of its closures raises an exception; the
    ledger decides whether it is read again. Closures that had begun to read
    it may still complete, so their results only count if the split was not
    lost (`on_lost`).
    Guarded by `_lock`: the ledger and the shares. Iterators are created
    without it, under the lock of their share.
    """

    def __init__(
        self,
        build: Callable[[DispatchContext, int, int], tuple[Any, bool]],
        ledger: SplitLedger,
        *,
        hands_on: bool = True,
        on_finished: OnShare = _nothing,
        on_lost: OnShare = _nothing,
        on_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """Begins a pass; creates no iterator yet.

        Args:
            build: Creates the iterator of a split on the worker of a context,
                without its first elements, whose number is the last argument;
                and returns it with whether it repeats without end. Called on
                a lane's thread.
            ledger: The splits; only the reader changes it from now on.
            hands_on: Whether a worker that leaves hands on its split. If not,
                the split counts as lost.
            on_finished: Called with each split that was read to the end,
                while the lock is held.
            on_lost: Called with each split whose reader was lost, while the
                lock is held.
            on_waiting: Called when a closure begins to wait for a split.
        """
        self._build = build
        self._ledger = ledger
        self._hands_on = hands_on
        # Number of elements that were read of splits that were handed on.
        self._skips: dict[int, int] = {}
        self._on_finished = on_finished
        self._on_lost = on_lost
        self._on_waiting = on_waiting
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Shares that are neither finished nor lost. The last one of a worker
        # is its current one; earlier ones wait for closures to complete.
        self._shares: list[Share] = []
        self._num_waiting = 0
        self._is_closed = False
        connection.present().part(Residents).add(self)

    @property
    def num_waiting(self) -> int:
        """Number of closures that wait for a split."""
        return self._num_waiting

    @property
    def rereads(self) -> bool:
        """Returns whether a split whose reader was lost is read again."""
        return self._ledger.rereads

    @property
    def is_over(self) -> bool:
        """Returns whether no split waits or is being read."""
        with self._lock:
            return self._ledger.is_over

    @property
    def progress(self) -> tuple[int, list[int]]:
        """Number of splits, and the splits that are done."""
        with self._lock:
            return self._ledger.num_splits, self._ledger.done

    @contextlib.contextmanager
    def reading(
        self,
        is_wanted: Callable[[], bool] = lambda: True,
        *,
        waits: bool = True,
    ) -> Iterator[Share | None]:
        """Yields the share of the worker that this thread dispatches to.

        Args:
            is_wanted: Returns whether the closure still needs a share; called
                while the lock is held.
            waits: Whether to wait for splits that others read and may lose.

        Yields:
            The share; None if nothing is left to read, or the share is not
            wanted any more.

        Raises:
            tf.errors.AbortedError: If the worker was lost and came back since
                this thread dispatched to it.
            BaseException: What creating the iterator raised.
        """
        context = dispatch_context.required()
        share = self._enter(context, is_wanted, waits=waits)
        if share is None:
            yield None
            return
        try:
            with share._building:
                if share.iterator is None:
                    share.iterator, share.is_infinite = self._build(
                        context, share.split, self._skips.get(share.split, 0)
                    )
            yield share
        except BaseException:
            share.count(None)
            self._leave(share, failed=True)
            raise
        self._leave(share, failed=False)

    def wake(self) -> None:
        """Makes waiting closures check whether their share is still wanted."""
        with self._lock:
            self._changed.notify_all()

    def close(self) -> None:
        """Hands out no more shares."""
        with self._lock:
            self._is_closed = True
            self._changed.notify_all()

    def add(self, worker_index: int) -> int:
        """Adds a split; returns its number.

        Args:
            worker_index: The worker that should read it.
        """
        with self._lock:
            split = self._ledger.add(worker_index)
            self._changed.notify_all()
            return split

    def release_worker(self, worker_index: int) -> None:
        """Hands on the splits of a worker that is about to leave."""
        with self._lock:
            for share in list(self._shares):
                if share.worker_index != worker_index:
                    continue
                num_read = share._num_read
                if not self._hands_on or num_read is None or share._num_readers:
                    self._lose(share)
                    continue
                self._shares.remove(share)
                if not share.is_infinite:
                    self._skips[share.split] = (
                        self._skips.get(share.split, 0) + num_read
                    )
                self._ledger.hand_on(share.split)
                self._changed.notify_all()

    def forget_worker(self, worker_index: int) -> None:
        """Marks the splits of a lost worker as lost."""
        with self._lock:
            for share in list(self._shares):
                if share.worker_index == worker_index:
                    self._lose(share)

    def _enter(
        self,
        context: DispatchContext,
        is_wanted: Callable[[], bool],
        *,
        waits: bool,
    ) -> Share | None:
        worker = context.worker_index
        with self._lock:
            while not self._is_closed and is_wanted():
                share = self._share_of(worker)
                if share is not None:
                    worker_resident.require_same_life(
                        worker, share.generation, context.generation
                    )
                    if share.generation < context.generation:
                        self._lose(share)
                    elif not share._is_exhausted:
                        share._num_readers += 1
                        return share
                split = self._ledger.take(worker)
                if split is not None:
                    self._shares.append(
                        Share(split, worker, context.generation)
                    )
                    continue
                if self._ledger.is_over or not waits:
                    return None
                self._num_waiting += 1
                self._on_waiting()
                self._changed.wait(_WAKE_UP_SECONDS)
                self._num_waiting -= 1
        return None

    def _leave(self, share: Share, *, failed: bool) -> None:
        with self._lock:
            share._num_readers -= 1
            if share not in self._shares:
                return  # The share was lost meanwhile.
            if failed and self._ledger.rereads:
                # The iterator no longer has the elements the closure took.
                self._lose(share)
            elif share._is_exhausted and not share._num_readers:
                self._shares.remove(share)
                self._ledger.finish(share.split)
                self._on_finished(share)
                self._changed.notify_all()

    def _share_of(self, worker_index: int) -> Share | None:
        for share in reversed(self._shares):
            if share.worker_index == worker_index:
                return share
        return None

    def _lose(self, share: Share) -> None:
        self._shares.remove(share)
        self._ledger.lose(share.split)
        self._on_lost(share)
        self._changed.notify_all()
