"""Calls of functions that the lanes of one worker make. Pure."""

import contextlib
import threading
import time
import weakref
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

# Without a limit, functions that wait for one another could deadlock here. To
# prepare a large step takes a few seconds, on a busy machine many times that.
_WAIT_SECONDS = 60.0


class InFlightCall:
    """The call that a lane waits for, and the other tasks it needs.

    Threading: the lane's thread uses `needing` and `cancelled_by`; all else is
    safe from any.

    Attributes:
        pinned: Generations of the other workers that the latest call needs.
    """

    __slots__ = (
        "_is_cancelled",
        "_is_under_way",
        "_manager",
        "_parameter_servers",
        "_since",
        "pinned",
    )

    def __init__(self) -> None:
        """Creates the object; no call is in flight."""
        self.pinned: dict[int, int] = {}
        self._parameter_servers: Collection[int] = ()
        self._since = 0.0
        self._is_under_way = False
        # Cancels the latest call of a function.
        self._manager: Any = None
        self._is_cancelled = False

    @property
    def is_under_way(self) -> bool:
        """True while a call is in flight."""
        return self._is_under_way

    @contextlib.contextmanager
    def needing(self, parameter_servers: Collection[int]) -> Iterator[None]:
        """Declares that a call is in flight.

        Args:
            parameter_servers: Indices of the ps that the call needs.
        """
        self._since = time.monotonic()
        self._parameter_servers = parameter_servers
        self._is_under_way = True
        try:
            yield
        finally:
            self._is_under_way = False
            self._parameter_servers = ()

    def cancelled_by(self, manager: Any) -> None:
        """Declares that a call of a function begins.

        Args:
            manager: Its method `start_cancel` cancels the call.
        """
        self._manager = manager
        if self._is_cancelled:
            manager.start_cancel()

    def cancel(self) -> None:
        """Cancels the call in flight, and all that the same thread begins."""
        # In this order: else a call that begins now would miss it.
        self._is_cancelled = True
        if (manager := self._manager) is not None:
            manager.start_cancel()

    def needs(self, parameter_servers: Collection[int], before: float) -> bool:
        """Returns whether a call is in flight that needs any of the ps.

        Args:
            parameter_servers: Indices of ps.
            before: Only calls that began before this time (monotonic) count.
        """
        return self._since < before and any(
            index in self._parameter_servers for index in parameter_servers
        )


class _Turn(NamedTuple):
    thread_id: int
    is_exclusive: bool


class WorkerCalls:
    """Runs a function exclusively on a worker the first time, then shared.

    TensorFlow prepares a function on a worker with its first call there, and
    with the first after any change of the cluster. Its list of a worker's
    prepared functions may move in memory meanwhile, and it reads entries of
    that list without a lock whenever it runs a part of a function on another
    task (`EagerClusterFunctionLibraryRuntime::Run`). So a call that runs
    beside a first call may send garbage ("Unable to parse request"), or crash
    its worker. Two calls that prepare one function at the same time, after a
    parameter server came back, may find it half prepared there: one was seen
    to fail ("Could not find function library"), the other to wait forever.

    Guarantees: while a first call runs, no other begins; it begins when no
    other runs. Calls that wait to be exclusive go first. No call waits for
    more than 60 s: then it begins anyway. No call waits for a thread that was
    given up.
    Guarded by `_changed`: everything. Nothing is called while holding it.
    """

    def __init__(self, wait_seconds: float = _WAIT_SECONDS) -> None:
        """Creates the object for one worker; no call runs.

        Args:
            wait_seconds: How long a call waits for others at most.
        """
        self._wait_seconds = wait_seconds
        self._changed = threading.Condition()
        self._running: list[_Turn] = []
        self._num_waiting_exclusive = 0
        # State of the cluster in which each function was prepared.
        self._prepared: weakref.WeakKeyDictionary[Any, Hashable] = (
            weakref.WeakKeyDictionary()
        )

    @contextlib.contextmanager
    def calling(self, function: Any, cluster_state: Hashable) -> Iterator[None]:
        """Waits until a function may run on the worker; it runs inside.

        Args:
            function: Its first call that succeeds prepares it.
            cluster_state: A value that changes when functions have to be
                prepared anew.
        """
        with self._changed:
            is_first = self._prepared.get(function) != cluster_state
        with self.turn(exclusive=is_first):
            yield
        if is_first:
            with self._changed:
                self._prepared[function] = cluster_state

    @contextlib.contextmanager
    def turn(self, *, exclusive: bool) -> Iterator[None]:
        """Waits for a turn; a call runs inside.

        Args:
            exclusive: Whether no other call may run at the same time.
        """
        with self._changed:
            if exclusive:
                self._await_exclusive()
            else:
                self._changed.wait_for(self._may_share, self._wait_seconds)
            mine = _Turn(threading.get_ident(), exclusive)
            self._running.append(mine)
        try:
            yield
        finally:
            with self._changed:
                if mine in self._running:
                    self._running.remove(mine)
                self._changed.notify_all()

    def give_up(self, thread_id: int) -> None:
        """Makes all calls stop waiting for a thread.

        Args:
            thread_id: `ident` of the thread, which may hang forever.
        """
        with self._changed:
            self._running = [
                turn for turn in self._running if turn.thread_id != thread_id
            ]
            self._changed.notify_all()

    def _may_share(self) -> bool:
        # Exclusive calls go first, or they would starve.
        return not self._num_waiting_exclusive and not any(
            turn.is_exclusive for turn in self._running
        )

    def _await_exclusive(self) -> None:
        self._num_waiting_exclusive += 1
        try:
            self._changed.wait_for(
                lambda: not self._running, self._wait_seconds
            )
        finally:
            self._num_waiting_exclusive -= 1
            # After a timeout, others may wait for this call no longer.
            self._changed.notify_all()
