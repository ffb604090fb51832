"""Pool of workers: everything behind a coordinator that runs closures."""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.cluster.calls.worker_calls import WorkerCalls
from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator.closures.closure import Closure
from tfps_plugin.coordinator.closures.closure_queue import ClosureQueue
from tfps_plugin.coordinator.closures.remote_value import RemoteValue
from tfps_plugin.coordinator.closures.shared_ledger import SharedLedger
from tfps_plugin.coordinator.elastic.attendant import Attendant
from tfps_plugin.coordinator.elastic.departures import Departures
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
from tfps_plugin.coordinator.stragglers.network_probe import NetworkProbe
from tfps_plugin.coordinator.stragglers.slow_worker_watch import SlowWorkerWatch
from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.monitoring.events import Events

# Enough that lanes never wait for the caller, and few enough that closures
# that wait (their arguments, above all) need little memory.
_QUEUED_CLOSURES_PER_LANE = 32
_CLOSE_TIMEOUT_SECONDS = 10.0
_CANCEL_TIMEOUT_SECONDS = 5.0
# A worker that is to be measured ends what it runs first.
_PROBE_TIMEOUT_SECONDS = 60.0


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
        slow_worker_fraction: See `tfps.SchedulingOptions`.
    """

    no_worker_timeout_seconds: float
    patience_seconds: float
    max_workers_lost: int | None
    in_flight: InFlightLimits
    restorer: Restorer | None = None
    ps_recovery_timeout_seconds: float = 0.0
    slow_worker_fraction: float | None = None


class WorkerPool:
    """The queue, the lanes of all workers, and the membership of a cluster.

    Threading: `start`, `stop`, `end` and `join` are called once each. All
    else is safe from any thread. Guarded by `_workers_lock`: the workers, and
    whether the pool is over; `workers` is replaced as a whole.

    Attributes:
        queue: The closures.
        membership: The workers that may run closures.
        examiner: Finds lost tasks.
        departures: Lets workers leave.
        attendant: Lets workers go that are told to end.
        watch: Knows how fast workers are, and reports slow ones.
        workers: All workers by index, present or not, also removed ones.
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
        release_worker: Callable[[int], None],
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
            release_worker: Takes over what a worker holds that is about to
                leave, likewise.
            is_wanted: Whether anybody can still schedule. If not, and nothing
                runs, all threads end within seconds.
            on_unwanted: Called on a thread of the pool before they end.
        """
        tasks = session.workers
        self._session = session
        self._counters = counters
        self._events = event_board
        self._in_flight = options.in_flight
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
        self.examiner = FailureExaminer(session, self.membership, inspector)
        self._notes = ErrorNotes(holdings)
        self._probe = NetworkProbe(
            self._schedule_beside,
            lambda: [session.device(ps) for ps in session.parameter_servers],
        )
        self.watch = SlowWorkerWatch(
            options.slow_worker_fraction,
            counters,
            event_board,
            present=lambda: self.present,
            address=lambda index: self.membership.workers[index].address,
            measure=lambda workers: self._probe.measure(
                workers, self.present, _PROBE_TIMEOUT_SECONDS
            ),
        )
        self._workers_lock = threading.Lock()
        self._is_over = False
        self.workers = {task.index: self._new_worker(task) for task in tasks}
        self.departures = Departures(
            session,
            self.queue.lanes,
            self.membership,
            counters,
            event_board,
            release_worker,
        )
        self.attendant = Attendant(session, self.membership, self.departures)
        self._ps_recovery = ps_recovery
        self._watchdog = Watchdog(
            session,
            self.queue,
            self.membership,
            self.examiner,
            inspector,
            StallDetector(options.patience_seconds),
            dict(self.workers),
        )

        def leave() -> None:
            attendant.stop()
            on_unwanted()

        attendant = self.attendant
        self._thread = MembershipThread(
            session,
            self.queue,
            self.membership,
            self.examiner,
            self._watchdog,
            event_board,
            no_worker_timeout_seconds=options.no_worker_timeout_seconds,
            forget_worker=forget_worker,
            ps_recovery=ps_recovery,
            is_wanted=is_wanted,
            on_unwanted=leave,
        )

    def add_worker(self, task: Task) -> None:
        """Adds a worker, which gets closures as soon as it answers.

        Args:
            task: One with the next index; or one that was removed.
        """
        with self._workers_lock:
            self.membership.add(task)
            if task.index in self.workers or self._is_over:
                return  # its lanes wait
            worker = self._new_worker(task)
            self.workers = {**self.workers, task.index: worker}
            self._watchdog.add(worker)
            self.queue.grow(
                _QUEUED_CLOSURES_PER_LANE * self._in_flight.at_first
            )
            worker.start()

    def ps_removed(self, task: Task) -> None:
        """Waits no more for a ps that was removed, if it is lost."""
        if self._ps_recovery is not None:
            self._ps_recovery.forget(task)

    @property
    def present(self) -> tuple[int, ...]:
        """Indices of the workers that take part, ascending."""
        absent = self.membership.absent
        return tuple(i for i in self.membership.indices if i not in absent)

    def _schedule_beside(
        self, worker_index: int, call: Callable[[], Any]
    ) -> RemoteValue | None:
        """Schedules a call that the program knows nothing of on a worker.

        Returns:
            Its result; None if the worker is away, or an error of the program
            waits to be raised.
        """
        value = RemoteValue(connection=self._session.connection)
        is_put = self.queue.try_put(Closure(call, value, worker_index))
        return value if is_put else None

    def _new_worker(self, task: Task) -> Worker:
        session, in_flight = self._session, self._in_flight
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
                    self._counters,
                    self._events,
                    self._notes,
                    self._pinned_workers,
                    self.watch.rates.note_retry,
                ),
                self._counters,
                worker_calls,
                self._pinned_workers,
                number=number,
                on_made=self.watch.made,
            )
            for number in range(in_flight.most)
        ]
        return Worker(task.index, lanes)

    def start(self) -> None:
        """Starts the membership thread; lanes start with their first work."""
        self._thread.start()
        self.attendant.start()
        for worker in self.workers.values():
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
        self.attendant.stop()
        self._probe.stop()
        self.watch.stop(_CLOSE_TIMEOUT_SECONDS)
        self._thread.stop(_CLOSE_TIMEOUT_SECONDS)
        self.attendant.join(_CLOSE_TIMEOUT_SECONDS)
        with self._workers_lock:
            self._is_over = True
        for worker in self.workers.values():
            worker.join(1.0)
