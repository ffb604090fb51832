"""Departures of workers: each ends what it runs, and nothing is lost."""

import time
from collections.abc import Callable

from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator.lanes.lane_queue import LaneQueue
from tfps_plugin.coordinator.members.membership import Membership
from tfps_plugin.coordinator.session_protocol import SessionLike
from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.counters import Counters

# It takes milliseconds, unless a parameter server does not answer.
_DELIST_SECONDS = 10.0


class Departures:
    """Lets workers leave.

    A worker that leaves begins nothing new, and ends what it runs. Then the
    chief takes over what the worker has counted, and hands on what it has not
    read; at last it is taken out of the cluster.

    Threading: safe from any thread but those of lanes and the membership's
    own. It has no lock; two threads that let the same worker leave wait for the
    same end.
    """

    def __init__(
        self,
        session: SessionLike,
        lanes: LaneQueue,
        membership: Membership,
        counters: Counters,
        event_board: events.Events,
        release_worker: Callable[[int], None],
    ) -> None:
        """Prepares.

        Args:
            session: The connection to the cluster.
            lanes: The queue that gives workers their closures.
            membership: The workers that take part.
            counters: Counts departures.
            event_board: Publishes them.
            release_worker: Takes over what a worker has that nothing runs on.
        """
        self._session = session
        self._lanes = lanes
        self._membership = membership
        self._counters = counters
        self._events = event_board
        self._release_worker = release_worker

    def leave(
        self, task: Task, *, for_good: bool, timeout_seconds: float
    ) -> bool:
        """Lets a worker leave, and waits until it has left.

        Args:
            task: The worker.
            for_good: Whether it is removed from the cluster. If not, it is
                about to end: it is probed and taken in again, as a lost one.
            timeout_seconds: How long to wait for what it runs.

        Returns:
            Whether it has left. If what it runs takes too long, a worker that
            is to be removed takes part again.
        """
        began_at = time.monotonic()
        worker_index = task.index
        membership = self._membership
        generation = membership.begin_to_leave(worker_index)
        if generation is None:
            # It is lost already: nothing runs on it.
            if for_good:
                membership.retire(worker_index)
                self._session.remove(task)
                self._publish(task, 0.0, for_good=True)
            return True
        deadline = began_at + timeout_seconds

        def left_seconds() -> float:
            return max(0.0, deadline - time.monotonic())

        is_free = False
        while not is_free:
            if not (
                membership.uses.wait_until_free(worker_index, left_seconds())
                and self._lanes.wait_until_drained(worker_index, left_seconds())
            ):
                if for_good:
                    membership.stay(worker_index)
                return False
            # What only its own worker may run may need this one by now.
            is_free = membership.let_nothing_keep(worker_index)
        try:
            if membership.is_present(worker_index, generation):
                self._release_worker(worker_index)
                self._session.note_leaving(task)
        except BaseException:
            if for_good:
                membership.stay(worker_index)
            raise
        membership.leave(worker_index, generation, for_good=for_good)
        membership.wait_until_delisted(worker_index, _DELIST_SECONDS)
        if for_good:
            self._session.remove(task)
        else:
            self._session.let_go(task)
        self._publish(task, time.monotonic() - began_at, for_good=for_good)
        return True

    def _publish(self, task: Task, seconds: float, *, for_good: bool) -> None:
        self._counters.increment("workers_left")
        self._events.publish(
            events.WorkerLeft(task.index, task.address, seconds, for_good)
        )
