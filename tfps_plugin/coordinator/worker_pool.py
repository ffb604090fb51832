"""Pool of workers: everything behind a coordinator that runs closures."""

import dataclasses
from collections.abc import Callable

from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.cluster.calls.worker_calls import WorkerCalls
from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator.closures.closure_queue import ClosureQueue
from tfps_plugin.coordinator.closures.shared_ledger import SharedLedger
from tfps_plugin.coordinator.error_notes import ErrorNotes
from tfps_plugin.coordinator.in_flight_limits import InFlightLimits
from tfps_plugin.coordinator.lanes.failed_runs import FailedRuns
from tfps_plugin.coordinator.lanes.lane import Lane
from tfps_plugin.coordinator.lanes.worker import Worker
from tfps_plugin.coordinator.members.failure_examiner import FailureExaminer
from tfps_plugin.coordinator.members.inspector import Inspector
from tfps_plugin.coordinator.members.membership import Membership
from tfps_plugin.coordinator.members.membership_thread import MembershipThread
from tfps_plugin.coordinator.members.pinned_workers import PinnedWorkers
from tfps_plugin.coordinator.members.ps_recovery import PsRecovery
from tfps_plugin.coordinator.members.ps_recovery import Restorer
from tfps_plugin.coordinator.members.stall_detector import StallDetector
from tfps_plugin.coordinator.members.watchdog import Watchdog
from tfps_plugin.coordinator.session_protocol import SessionLike
from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.monitoring.events import Events

# Enough that lanes never wait for the caller, and few enough that closures
# that wait (their arguments, above all) need little memory.
_QUEUED_CLOSURES_PER_LANE = 32
_CLOSE_TIMEOUT_SECONDS = 10.0
_CANCEL_TIMEOUT_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class PoolOptions:
    """Options of a pool; see `ClusterCoordinator` for the first three.

    Attributes:
        no_worker_timeout_seconds: How long closures wait without any worker.
        patience_seconds: How long a closure runs before tasks are probed.
        max_workers_lost: Number of workers that a closure may lose in a row.
        in_flight: Number of closures that each worker runs at a time.
        restorer: Restores the variables of lost ps; None: nothing does.
        ps_recovery_timeout_seconds: How long a ps may be away.
    """

    no_worker_timeout_seconds: float
    patience_seconds: float
    max_workers_lost: int | None
    in_flight: InFlightLimits
    restorer: Restorer | None = None
    ps_recovery_timeout_seconds: float = 0.0


class WorkerPool:
    """The queue, the lanes of all workers, and the membership of a cluster.

    Threading: `start`, `stop`, `end` and `join` are called once each. All
    else is as safe as the parts are; they lock for themselves.

    Attributes:
        queue: The closures.
        membership: The workers that may run closures.
        examiner: Finds lost tasks.
        workers: All workers, present or not.
    """

    def __init__(
        self,
        session: SessionLike,
        counters: Counters,
        event_board: Events,
        options: PoolOptions,
        *,
        holdings: Callable[[int], str],
        forget_worker: Callable[[int], None],
        is_wanted: Callable[[], bool],
        on_unwanted: Callable[[], None],
    ) -> None:
        """Wires the parts together; nothing runs before `start`.

        Args:
            session: The connection to the cluster.
            counters: Counts closures and losses.
            event_board: Publishes losses and returns.
            options: Timeouts and limits.
            holdings: Describes what a ps holds, by its index.
            forget_worker: Drops what a lost worker held, by its index.
            is_wanted: Whether anybody can still schedule. If not, and nothing
                runs, all threads end within seconds.
            on_unwanted: Called on a thread of the pool before they end.
        """
        tasks = session.cluster.workers
        shared = SharedLedger(
            capacity=_QUEUED_CLOSURES_PER_LANE
            * options.in_flight.at_first
            * len(tasks),
            lanes_per_worker=options.in_flight.at_first,
            max_workers_lost=options.max_workers_lost,
            new_cancellation=tensorflow_execution.Cancellation,
        )
        self.queue = ClosureQueue(shared)
        inspector = Inspector(session, counters, event_board, holdings)
        ps_recovery = None
        if options.restorer is not None:
            ps_recovery = PsRecovery(
                session,
                inspector,
                options.restorer,
                counters,
                event_board,
                timeout_seconds=options.ps_recovery_timeout_seconds,
            )
        self.membership = Membership(
            session, self.queue.lanes, counters, event_board, ps_recovery
        )
        self._pinned_workers = PinnedWorkers(
            self.membership, options.no_worker_timeout_seconds
        )
        self.examiner = FailureExaminer(
            session.cluster, self.membership, inspector
        )
        notes = ErrorNotes(holdings)
        self.workers = tuple(
            self._new_worker(
                session, counters, event_board, options.in_flight, notes, task
            )
            for task in tasks
        )
        self._thread = MembershipThread(
            session,
            self.queue,
            self.membership,
            self.examiner,
            Watchdog(
                session,
                self.queue,
                self.membership,
                self.examiner,
                inspector,
                StallDetector(options.patience_seconds),
                {worker.worker_index: worker for worker in self.workers},
            ),
            event_board,
            no_worker_timeout_seconds=options.no_worker_timeout_seconds,
            forget_worker=forget_worker,
            ps_recovery=ps_recovery,
            is_wanted=is_wanted,
            on_unwanted=on_unwanted,
        )

    def _new_worker(
        self,
        session: SessionLike,
        counters: Counters,
        event_board: Events,
        in_flight: InFlightLimits,
        notes: ErrorNotes,
        task: Task,
    ) -> Worker:
        worker_calls = WorkerCalls()
        lanes = [
            Lane(
                task.index,
                task.index * in_flight.most + number,
                # Asked for each closure: a worker may return with other
                # devices.
                lambda: session.device(task),
                self.queue.lanes,
                self.membership,
                FailedRuns(
                    task.index,
                    self.queue.lanes,
                    self.membership,
                    self.examiner,
                    counters,
                    event_board,
                    notes,
                    self._pinned_workers,
                ),
                counters,
                worker_calls,
                self._pinned_workers,
                number=number,
            )
            for number in range(in_flight.most)
        ]
        return Worker(task.index, lanes)

    def start(self) -> None:
        """Starts the membership thread; lanes start with their first work."""
        self._thread.start()
        for worker in self.workers:
            worker.start()

    def stop(self) -> None:
        """Cancels what waits, and after some seconds also what runs."""
        self.queue.stop()
        if not self.queue.wait_until_quiet(_CLOSE_TIMEOUT_SECONDS):
            # Otherwise its worker would run it forever.
            self.queue.cancel_running()
            self.queue.wait_until_quiet(_CANCEL_TIMEOUT_SECONDS)

    def end(self, error: BaseException) -> bool:
        """Cancels what waits and what runs, at once.

        Args:
            error: Raised by every call from now on.

        Returns:
            Whether no closure runs any more.
        """
        self.queue.end(error)
        return self.queue.wait_until_quiet(_CANCEL_TIMEOUT_SECONDS)

    def join(self) -> None:
        """Ends the threads, after `stop` or `end`."""
        self._thread.stop(_CLOSE_TIMEOUT_SECONDS)
        for worker in self.workers:
            worker.join(1.0)
