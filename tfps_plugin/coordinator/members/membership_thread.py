"""Thread that changes who is in the cluster."""

import logging
import threading
import time
from collections.abc import Callable

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_functions
from tfps_plugin.coordinator.closures.closure_queue import ClosureQueue
from tfps_plugin.coordinator.members.failure_examiner import FailureExaminer
from tfps_plugin.coordinator.members.membership import Membership
from tfps_plugin.coordinator.members.no_worker_deadline import Action
from tfps_plugin.coordinator.members.no_worker_deadline import NoWorkerDeadline
from tfps_plugin.coordinator.members.ps_recovery import PsRecovery
from tfps_plugin.coordinator.members.watchdog import Watchdog
from tfps_plugin.coordinator.session_protocol import SessionLike
from tfps_plugin.monitoring import events

_logger = logging.getLogger("tfps_plugin.coordinator")

_PROBE_TIMEOUT_SECONDS = 2.0
_RETRY_SECONDS = 1.0
# How often the thread looks for tasks and calls that have stalled.
_WATCH_INTERVAL_SECONDS = 5.0
# How long closures may take to notice that a ps which they need is lost.
_QUIET_SECONDS = 2.0


class MembershipThread:
    """Delists lost workers, readmits those that answer, recovers lost ps.

    All changes of the cluster happen on this one thread, so they never
    overlap. The thread also runs the watchdog, and ends the round when no
    worker is left for too long.

    Threading: `start` and `stop` are called by one thread. It has no lock;
    everything else is used by the thread itself only.
    """

    def __init__(
        self,
        session: SessionLike,
        queue: ClosureQueue,
        membership: Membership,
        examiner: FailureExaminer,
        watchdog: Watchdog,
        event_board: events.Events,
        *,
        no_worker_timeout_seconds: float,
        forget_worker: Callable[[int], None],
        ps_recovery: PsRecovery | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
        on_unwanted: Callable[[], None] = lambda: None,
    ) -> None:
        """Creates the thread; it runs from `start` to `stop`.

        Args:
            session: The connection to the cluster.
            queue: The queue whose round ends with an error.
            membership: The state that the thread works on.
            examiner: Examines ps.
            watchdog: Gives up what has stalled.
            event_board: Publishes that no worker is left.
            no_worker_timeout_seconds: How long closures may wait while no
                worker is present.
            forget_worker: Drops what a lost worker held, by its index.
            ps_recovery: Recovers lost ps; None: nothing does.
            is_wanted: Whether anybody can still schedule. If not, and nothing
                runs, the thread ends within seconds, and the lanes with it.
            on_unwanted: Called on the thread before it ends for that reason.
        """
        self._session = session
        self._queue = queue
        self._membership = membership
        self._examiner = examiner
        self._watchdog = watchdog
        self._events = event_board
        self._no_worker_deadline = NoWorkerDeadline(no_worker_timeout_seconds)
        self._forget_worker = forget_worker
        self._ps_recovery = ps_recovery
        self._is_wanted = is_wanted
        self._on_unwanted = on_unwanted
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="tfps-membership", daemon=True
        )

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Stops the thread, and gives up recovering ps.

        Args:
            timeout_seconds: How long to wait for its end.

        Returns:
            Whether it ended in time.
        """
        self._examiner.stop()
        self._stop.set()
        if self._ps_recovery is not None:
            self._ps_recovery.stop()
        self._membership.wake()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        # Others wait for silent tasks until this thread gives them up.
        try:
            with tensorflow_functions.asking_nobody():
                self._run_until_stopped()
        finally:
            self._membership.end()

    def _run_until_stopped(self) -> None:
        while not self._stop.is_set():
            # Asked first: a coordinator that is gone schedules nothing more.
            if not self._is_wanted() and not self._queue.has_work:
                self._on_unwanted()
                self._queue.stop()
                return
            try:
                self._recover_ps()
                self._delist_lost()
                self._readmit_answering()
                self._watchdog.check()
                self._check_no_worker_deadline()
            except Exception:
                # Without this thread no worker would ever come back.
                _logger.exception(
                    "A change of the cluster failed; trying again in %.0f s",
                    _RETRY_SECONDS,
                )
                self._stop.wait(_RETRY_SECONDS)
            self._wait_for_news()

    def _wait_for_news(self) -> None:
        timeout_seconds = _WATCH_INTERVAL_SECONDS
        left_seconds = self._no_worker_deadline.seconds_left(time.monotonic())
        if left_seconds is not None:
            timeout_seconds = min(timeout_seconds, left_seconds)
        self._membership.wait_for_news(timeout_seconds, self._stop)

    def _recover_ps(self) -> None:
        """Advances the recovery of lost ps; no closure begins meanwhile."""
        recovery = self._ps_recovery
        if recovery is None or not recovery.is_under_way:
            return
        # What still runs after this needs no lost ps, or the watchdog ends it.
        self._queue.wait_until_quiet(_QUIET_SECONDS)
        lost = recovery.lost
        error = recovery.advance()
        if recovery.is_under_way:
            return
        if error is not None:
            self._queue.end_round(error)
        self._watchdog.ps_restored([task.index for task in lost])
        self._membership.end_recovery()

    def _delist_lost(self) -> None:
        while not self._stop.is_set():
            worker_index = self._membership.next_to_delist
            if worker_index is None:
                return
            try:
                gone = self._session.delist(
                    self._membership.workers[worker_index]
                )
            except (
                errors.TaskUnreachableError,
                errors.TaskLostError,
            ) as error:
                # A ps does not answer, and nothing can change without it; or
                # TensorFlow waits for a task that hangs. Other work of this
                # thread must not wait for either.
                _logger.warning(
                    "Worker %d is lost, but cannot be removed from the "
                    "cluster yet; trying again: %s",
                    worker_index,
                    error,
                )
                self._end_round_if_a_ps_is_lost()
                self._stop.wait(_RETRY_SECONDS)
                return
            self._forget_worker(worker_index)
            self._membership.delisted()
            for task in gone:
                if (
                    task in self._membership.workers
                    and task.index != worker_index
                ):
                    self._membership.report_lost(
                        task.index,
                        self._membership.generation(task.index),
                        "it did not answer a probe",
                    )

    def _end_round_if_a_ps_is_lost(self) -> None:
        for task in self._session.parameter_servers:
            error = self._examiner.examine_ps(task)
            if error is not None and self._queue.has_work:
                self._queue.end_round(error)
                self._watchdog.abandon_all()
                return

    def _readmit_answering(self) -> None:
        for worker_index in self._membership.due:
            # A fresh loss goes first: a change of the cluster may block while
            # a dead task is listed.
            if (
                self._membership.next_to_delist is not None
                or self._stop.is_set()
            ):
                return
            self._try_to_readmit(worker_index)

    def _try_to_readmit(self, worker_index: int) -> None:
        task = self._membership.workers[worker_index]
        try:
            self._session.probe(task, _PROBE_TIMEOUT_SECONDS)
            # Another coordinator of the session may have admitted a late one.
            self._session.readmit(
                task, unless_listed=self._membership.is_late(worker_index)
            )
        except errors.TaskUnreachableError as error:
            self._membership.no_answer(worker_index, error.reason)
        except Exception as error:
            _logger.warning(
                "Worker %d at %s answers, but could not be readmitted; trying "
                "again: %s",
                worker_index,
                task.address,
                error,
            )
            self._membership.no_answer(worker_index, f"not readmitted: {error}")
        else:
            self._membership.admit(worker_index)

    def _check_no_worker_deadline(self) -> None:
        """Reports that no worker is left, and at last ends the round."""
        deadline = self._no_worker_deadline
        action = deadline.check(
            is_waiting=self._membership.is_empty and self._queue.has_work,
            now=time.monotonic(),
        )
        if action is Action.GIVE_UP:
            self._queue.end_round(
                self._no_worker_error(deadline.waited_seconds)
            )
        elif action is Action.REPORT:
            self._events.publish(
                events.NoWorkerLeft(
                    deadline.waited_seconds, deadline.timeout_seconds
                )
            )

    def _no_worker_error(self, waited_seconds: float) -> errors.WorkerLostError:
        reasons = self._membership.reasons
        tasks = "".join(
            f"\n  worker {task.index} at {task.address}: {reasons[task.index]}"
            for task in self._membership.workers
            if task.index in reasons and task.index in self._membership.indices
        )
        return errors.WorkerLostError(
            f"No worker was left for {waited_seconds:.0f} s; expected at least "
            "one to come back. Received from the last probes:"
            f"{tasks}\nWhat to do: (1) start the workers again; they rejoin "
            "by themselves; (2) repeat the call that raised this error; (3) "
            "allow more time with ClusterCoordinator(strategy, "
            "no_worker_timeout_seconds=...). See docs/failure_model.md."
        )
