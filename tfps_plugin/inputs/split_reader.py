"""Gives every worker the iterator of the split that it reads."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.inputs.splits import SplitLedger
from tfps_plugin.variables.per_worker import worker_resident

# How often a lane that waits for a split looks whether it still should.
_WAKE_UP_SECONDS = 1.0


@dataclasses.dataclass(eq=False)
class Share:
    """A split that one worker reads; all its lanes read from it.

    Attributes:
        split: Number of the split.
        worker_index: Who reads it.
        generation: The life of that worker that it was given to.
        iterator: Where its elements come from, on that worker.
        is_infinite: Whether it repeats without end: it ends only if there is
            nothing to repeat.
        has_given: Whether steps were made on what it gave.
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

    def exhausted(self) -> None:
        """Says that its iterator has come to its end."""
        self._is_exhausted = True


# Told of a split that was read to its end, or whose reader was lost.
OnShare = Callable[[Share], None]


def _nothing(share: Share) -> None:
    del share


class SplitReader:
    """The splits of one input, as they are read by the workers.

    A closure asks for the share of the worker that it runs on:

    ```python
    with reader.reading() as share:
        if share is not None:
            ...  # share.iterator
    ```

    The first that asks takes a split and makes its iterator; when it is
    exhausted, the next one takes another split. Where none waits but others
    still read, a closure waits for as long as it has something to do: what
    they read may come back.

    Guarantees: a split that was not lost is read by one worker. A split whose
    worker was lost, or one of whose closures raised, is lost; the ledger says
    what that means. Closures that had begun to read it may still come to their
    end, so whoever counts what they did must ask whether it was lost
    (`on_lost`). Guarded by `_lock`: the ledger and the shares. Iterators
    are made without it, under the lock of their share.
    """

    def __init__(
        self,
        build: Callable[[DispatchContext, int], tuple[Any, bool]],
        ledger: SplitLedger,
        *,
        on_finished: OnShare = _nothing,
        on_lost: OnShare = _nothing,
        on_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """Begins to read; makes no iterator yet.

        Args:
            build: Makes the iterator of a split on the worker of a context,
                and says whether it repeats without end. Called on a lane's
                thread.
            ledger: The splits; nobody else changes it from now on.
            on_finished: Told of each split that was read to its end, while
                the lock is held.
            on_lost: Likewise, of each split whose reader was lost.
            on_waiting: Told that a closure begins to wait for a split.
        """
        self._build = build
        self._ledger = ledger
        self._on_finished = on_finished
        self._on_lost = on_lost
        self._on_waiting = on_waiting
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Given to a worker and neither finished nor lost; of each worker's
        # the last is what it reads now, others only have readers to wait for.
        self._shares: list[Share] = []
        self._num_waiting = 0
        self._is_closed = False
        worker_resident.register(self)

    @property
    def num_waiting(self) -> int:
        """How many closures wait for a split."""
        return self._num_waiting

    @property
    def rereads(self) -> bool:
        """Whether a split whose reader was lost is read again."""
        return self._ledger.rereads

    @property
    def is_over(self) -> bool:
        """Whether every split was read, or will not be."""
        with self._lock:
            return self._ledger.is_over

    @property
    def progress(self) -> tuple[int, list[int]]:
        """How many splits there are, and those that are done."""
        with self._lock:
            return self._ledger.num_splits, self._ledger.done

    @property
    def left_out(self) -> list[int]:
        """Splits that were not read to their end and will not be."""
        with self._lock:
            return self._ledger.left_out

    @contextlib.contextmanager
    def reading(
        self, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Share | None]:
        """The share of the worker that this thread dispatches to.

        Args:
            is_wanted: Whether there is still something to do; asked while the
                lock is held.

        Yields:
            The share; None if there is nothing left to read, or it is not
            wanted any more.

        Raises:
            AbortedError: TensorFlow's, if the worker was lost and came back
                since this thread dispatched to it.
            BaseException: What making the iterator raised.
        """
        context = dispatch_context.required()
        share = self._enter(context, is_wanted)
        if share is None:
            yield None
            return
        try:
            with share._building:
                if share.iterator is None:
                    share.iterator, share.is_infinite = self._build(
                        context, share.split
                    )
            yield share
        except BaseException:
            self._leave(share, failed=True)
            raise
        self._leave(share, failed=False)

    def wake(self) -> None:
        """Has the closures that wait ask whether they still should."""
        with self._lock:
            self._changed.notify_all()

    def close(self) -> None:
        """Gives nobody a share any more."""
        with self._lock:
            self._is_closed = True
            self._changed.notify_all()

    def forget_worker(self, worker_index: int) -> None:
        """Loses what a lost worker was reading."""
        with self._lock:
            for share in list(self._shares):
                if share.worker_index == worker_index:
                    self._lose(share)

    def _enter(
        self, context: DispatchContext, is_wanted: Callable[[], bool]
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
                if self._ledger.is_over:
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
                return  # lost meanwhile
            if failed and self._ledger.rereads:
                # What the closure took is gone from the iterator.
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
