"""Watchdog for tasks that are silent and calls that hang."""

import logging
import time
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

from tfps_plugin.cluster.calls import bounded_calls
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.coordinator.closures.closure_queue import ClosureQueue
from tfps_plugin.coordinator.lanes.worker import Worker
from tfps_plugin.coordinator.members.failure_examiner import FailureExaminer
from tfps_plugin.coordinator.members.inspector import Inspector
from tfps_plugin.coordinator.members.membership import Membership
from tfps_plugin.coordinator.members.stall_detector import StallDetector
from tfps_plugin.coordinator.session_protocol import SessionLike

_logger = logging.getLogger("tfps_plugin.coordinator")

_HANGS = (
    "it does not end a function that needed a parameter server that was lost"
)
# A little longer than the inspector's own probe.
_PROBE_TIMEOUT_SECONDS = 3.0
# How long a call may go on after it was cancelled.
_CANCELLED_SECONDS = 10.0


class Watchdog:
    """Gives up tasks that are silent, and calls that do not end.

    Threading: used by the membership thread only, but for `add`.
    """

    def __init__(
        self,
        session: SessionLike,
        queue: ClosureQueue,
        membership: Membership,
        examiner: FailureExaminer,
        inspector: Inspector,
        detector: StallDetector,
        drivers: Mapping[int, Worker],
    ) -> None:
        """Creates the watchdog.

        Args:
            session: The connection to the cluster.
            queue: The queue whose round ends when a ps is given up.
            membership: Receives reports of lost workers.
            examiner: Recovers lost ps.
            inspector: Probes tasks.
            detector: Decides when a task or a call has stalled.
            drivers: The lanes of each worker, by its index.
        """
        self._session = session
        self._queue = queue
        self._membership = membership
        self._examiner = examiner
        self._inspector = inspector
        self._detector = detector
        self._drivers = drivers
        # When workers were first seen with calls that need a lost worker.
        self._awaiting_lost: dict[int, float] = {}

    def add(self, driver: Worker) -> None:
        """Watches the lanes of a worker that was added; from any thread."""
        # Replaced as a whole, because the thread may be looking at it.
        self._drivers = {**self._drivers, driver.worker_index: driver}

    def check(self) -> None:
        """Looks for everything that has stalled, and gives it up."""
        self._give_up_silent_tasks()
        self._give_up_hanging_calls()
        self._abandon_calls_of_lost_workers()
        self._abandon_cancelled_calls()
        self._end_cancelled_calls_of_chief()

    def ps_restored(self, ps_indices: Collection[int]) -> None:
        """Records that ps are back; calls that they left hanging are due.

        Gives up workers on which abandoned calls still need one of them. As
        long as such a call goes on, TensorFlow takes its function for prepared
        on that worker, although the ps has lost its part: every later call of
        the function would fail ("Could not find function library").

        Args:
            ps_indices: Indices of the ps. No closure has begun since.
        """
        now = time.monotonic()
        self._detector.restored(ps_indices, now)
        for worker_index, driver in self._drivers.items():
            if driver.abandoned_call_needs(ps_indices, now):
                self._give_up_worker(worker_index, _HANGS)

    def abandon_all(self) -> None:
        """Abandons what every worker runs."""
        for driver in self._drivers.values():
            driver.abandon()

    def _give_up_silent_tasks(self) -> None:
        """Probes tasks that something may wait for; gives up silent ones."""
        now = time.monotonic()
        busy_since = {
            index: driver.busy_since()
            for index, driver in self._drivers.items()
        }
        overdue = self._detector.overdue(busy_since, now)
        for worker_index in overdue:
            if not self._membership.is_present(worker_index):
                self._drivers[worker_index].abandon()
        outcomes = bounded_calls.call_all(
            self._inspector.why_lost,
            self._suspects(busy_since, overdue, now),
            _PROBE_TIMEOUT_SECONDS,
        )
        for task, outcome in outcomes.items():
            reason = outcome.value
            if outcome.error is not None:
                reason = str(outcome.error)
            if reason is None:
                self._detector.answered(task)
            elif self._detector.silent(task):
                if task.job == PARAMETER_SERVER:
                    self._give_up_ps(task, reason, is_awaited=bool(overdue))
                else:
                    self._give_up_worker(task.index, reason)

    def _suspects(
        self,
        busy_since: Mapping[int, float | None],
        overdue: Collection[int],
        now: float,
    ) -> list[Any]:
        """Returns the tasks to probe now."""
        is_roll_call = self._detector.is_roll_call_due(now)
        listed = self._session.listed
        workers = [
            task
            for task in self._membership.workers
            if self._membership.is_present(task.index)
            and (
                task.index in overdue
                or self._detector.is_suspect(task)
                # A busy worker is probed once it is overdue.
                or (is_roll_call and busy_since.get(task.index) is None)
            )
        ]
        servers = [
            task
            for task in self._session.parameter_servers
            if overdue or is_roll_call or self._detector.is_suspect(task)
        ]
        return [task for task in (*workers, *servers) if task in listed]

    def _give_up_worker(self, worker_index: int, reason: str) -> None:
        self._membership.report_lost(
            worker_index, self._membership.generation(worker_index), reason
        )
        if worker_index in self._drivers:
            self._drivers[worker_index].abandon()

    def _give_up_ps(self, task: Any, reason: str, *, is_awaited: bool) -> None:
        """Recovers a silent ps, or makes everything that awaits it fail."""
        error = self._examiner.ps_lost(
            task, self._inspector.ps_lost(task, reason)
        )
        if is_awaited:
            if error is not None:
                self._queue.end_round(error)
            self.abandon_all()
        if error is not None:
            # The chief itself may wait for it, in any call of TensorFlow.
            self._session.break_connections(task)

    def _give_up_hanging_calls(self) -> None:
        """Removes workers whose calls hang since a ps was lost."""
        for restored in self._detector.due_for_hanging_calls(time.monotonic()):
            for worker_index, driver in self._drivers.items():
                if driver.hangs_on(restored.parameter_servers, restored.at):
                    # Once readmitted, it knows nothing of the call.
                    self._give_up_worker(worker_index, _HANGS)

    def _abandon_calls_of_lost_workers(self) -> None:
        """Abandons calls that another worker's loss has not made fail."""
        now = time.monotonic()
        since = self._awaiting_lost
        self._awaiting_lost = {
            index: since.get(index, now)
            for index, driver in self._drivers.items()
            if driver.awaits_lost()
        }
        for worker_index, began_at in self._awaiting_lost.items():
            if now - began_at >= self._detector.hanging_seconds:
                self._drivers[worker_index].abandon_awaiting()

    def _abandon_cancelled_calls(self) -> None:
        """Abandons cancelled calls that TensorFlow cannot end."""
        since = time.monotonic() - _CANCELLED_SECONDS
        for worker_index, driver in self._drivers.items():
            if num_calls := driver.abandon_cancelled(since):
                _logger.warning(
                    "Worker %d still runs %d functions %.0f s after they were "
                    "cancelled; their threads are abandoned.",
                    worker_index,
                    num_calls,
                    _CANCELLED_SECONDS,
                )

    def _end_cancelled_calls_of_chief(self) -> None:
        """Ends cancelled calls of the chief that TensorFlow cannot end.

        They fail with their connections to the ps. Other calls that use these
        fail as well; whoever makes them does so again, or gets the error.
        """
        cancellation = self._session.connection.cancellation
        if cancellation is None:
            return
        num_calls = self._detector.due_cancelled_calls(
            cancellation.ignored_by(), time.monotonic()
        )
        if not num_calls:
            return
        _logger.warning(
            "%d functions on the chief still run %.0f s after a part of them "
            "failed; the chief connects to the parameter servers again.",
            num_calls,
            self._detector.hanging_seconds,
        )
        for task in self._session.parameter_servers:
            self._session.break_connections(task)
