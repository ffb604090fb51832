"""Closure ledger that callers and lanes share behind one lock."""

import collections
import sys
import threading
from collections.abc import Callable

from tfps_plugin.cluster.chief.connection import Cancellation
from tfps_plugin.coordinator.closures.closure_ledger import ClosureLedger
from tfps_plugin.coordinator.closures.closure_ledger import Ended
from tfps_plugin.coordinator.lanes.lane_scheduler import LaneScheduler


class SharedLedger:
    """The state behind `ClosureQueue` (callers) and `LaneQueue` (lanes).

    Guarantees: each closure is told its end exactly once, before it counts as
    settled. An error that ends a round also starts the cancellation of what
    runs.
    Guarded by `lock` (shared by the conditions): all attributes.
    Never call while holding the lock: `change`, `tell`, the start of a lane
    or of a cancellation.

    Attributes:
        lock: Held for moments only.
        ledger: The closures.
        scheduler: The lanes that sleep, and who is woken.
        room_made: Notified when closures left the queue, or an error waits.
        settled: Notified when no closure runs and every end was told.
        round_ended: Notified when an error ended a round.
        drained: Notified when a worker that is being drained may be done.
        is_stopped: Whether the queue was stopped.
        ended_by: The error that every call raises once the queue has ended
            for good.
        num_untold: Number of closures that ended and were not told yet.
        untold_of: The same, by the worker that ran them last.
        cancellation: Ends the calls of closures that begin now.
    """

    def __init__(
        self,
        capacity: int,
        *,
        lanes_per_worker: int = sys.maxsize,
        max_workers_lost: int | None = None,
        new_cancellation: Callable[[], Cancellation | None] = lambda: None,
    ) -> None:
        """Creates an empty ledger.

        Args:
            capacity: How many closures may wait before callers do.
            lanes_per_worker: Number of lanes of each worker that take part.
            max_workers_lost: How many workers in a row may be lost while they
                run the same closure before it counts as the cause; None: any
                number.
            new_cancellation: Makes what ends the calls of a round's closures
                when an error ends the round; None: they run to their end.
        """
        self.lock = threading.RLock()
        self.ledger = ClosureLedger(capacity, max_workers_lost)
        self.scheduler = LaneScheduler(
            self.lock,
            self.ledger,
            self.end_round,
            lanes_per_worker,
        )
        self.room_made = threading.Condition(self.lock)
        self.settled = threading.Condition(self.lock)
        self.round_ended = threading.Condition(self.lock)
        self.drained = threading.Condition(self.lock)
        self.is_stopped = False
        self.ended_by: BaseException | None = None
        self.num_untold = 0
        self.untold_of: collections.Counter[int | None] = collections.Counter()
        self._new_cancellation = new_cancellation
        self.cancellation = new_cancellation()

    @property
    def is_quiet(self) -> bool:
        """True if no closure runs and every end was told; needs the lock."""
        return not self.ledger.num_running and not self.num_untold

    def change(self, change: Callable[[], list[Ended]]) -> list[Ended]:
        """Makes one change of the ledger, and tells the closures that ended.

        Args:
            change: Called with the lock; returns the closures that it ended.

        Returns:
            What `change` returned.
        """
        ledger = self.ledger
        with self.lock:
            num_queued_before = ledger.num_queued
            round_before = ledger.round
            ended = change()
            cancellation = None
            if ledger.round != round_before:
                cancellation = self.renew_cancellation()
            self.ended(ended)
            start = None
            if ledger.num_queued > num_queued_before:
                start = self.scheduler.wake()
            elif ledger.num_queued < num_queued_before:
                self.room_made.notify_all()
            if ledger.has_error:
                # Callers that wait for room have an error to raise instead.
                self.room_made.notify_all()
                self.round_ended.notify_all()
        if cancellation is not None:
            cancellation.start()
        self.scheduler.start(start)
        self.tell(ended)
        return ended

    def end_round(self, error: BaseException) -> None:
        """Ends the round with an error: the next caller raises it."""
        self.change(lambda: self.ledger.end_round(error))

    def cancel_bound(self, worker_index: int) -> list[Ended]:
        """Cancels what waits for a paused worker alone; needs the lock.

        Returns:
            Those closures, to be told without the lock.
        """
        ended = self.ledger.cancel_bound(worker_index)
        self.ended(ended)
        # Also for callers who wait for room for a closure of that worker.
        self.room_made.notify_all()
        return ended

    def renew_cancellation(self) -> Cancellation | None:
        """Begins later closures under a new cancellation; needs the lock.

        Returns:
            The previous cancellation, to be started without the lock.
        """
        previous, self.cancellation = (
            self.cancellation,
            self._new_cancellation(),
        )
        return previous

    def ended(self, ended: list[Ended]) -> None:
        """Notes closures that ended and are to be told; needs the lock."""
        self.num_untold += len(ended)
        self.untold_of.update(closure.worker_index for closure, _ in ended)

    def tell(self, ended: list[Ended]) -> None:
        """Tells closures that they ended; they are settled after it."""
        for closure, outcome in ended:
            closure.tell(outcome)
        with self.lock:
            self.num_untold -= len(ended)
            self.untold_of.subtract(
                closure.worker_index for closure, _ in ended
            )
            if self.scheduler.are_drained:
                self.drained.notify_all()
            if self.is_quiet:
                self.settled.notify_all()

    def is_done(self, worker_index: int) -> bool:
        """Returns whether a worker has nothing to run; needs the lock.

        Args:
            worker_index: A worker that is being drained.
        """
        return not (
            self.ledger.num_on(worker_index) or self.untold_of[worker_index]
        )
