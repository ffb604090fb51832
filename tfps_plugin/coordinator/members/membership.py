"""Who takes part in the job; the one thread that changes it."""

import collections
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any
from typing import Protocol

from tfps_plugin import errors
from tfps_plugin.cluster.calls import bounded_calls
from tfps_plugin.coordinator.closures.closure_queue import ClosureQueue
from tfps_plugin.coordinator.members import failures
from tfps_plugin.coordinator.members.hanging_calls import HangingCalls
from tfps_plugin.coordinator.members.inspector import Inspector
from tfps_plugin.coordinator.members.ps_recovery import PsRecovery
from tfps_plugin.coordinator.members.roster import Roster
from tfps_plugin.coordinator.members.stall_watch import StallWatch
from tfps_plugin.coordinator.session_protocol import SessionLike
from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.counters import Counters

logger = logging.getLogger("tfps_plugin")

_BROKEN = "an earlier connection to it has broken this one"
_HANGS = (
    "it does not end a function that needed a parameter server that was lost"
)
_PROBE_TIMEOUT_SECONDS = 2.0
_RETRY_SECONDS = 1.0
# How often it is said that no worker is left.
_PROGRESS_SECONDS = 30.0
# How often the thread looks for closures that run for too long.
_WATCH_INTERVAL_SECONDS = 5.0
# How often a lost ps is asked whether it is back.
_RECOVERY_INTERVAL_SECONDS = 0.25
# How long closures that need a lost ps may take to find that out.
_QUIET_SECONDS = 2.0
# How long after its return they are taken to hang.
_HANGING_SECONDS = 5.0
# How long a call that was cancelled is waited for.
_CANCELLED_SECONDS = 10.0


class Watched(Protocol):
    """What the membership asks of those who drive a worker."""

    def busy_since(self) -> float | None:
        """Since when (monotonic) the longest closure runs, if any does."""

    def hangs_on(
        self, parameter_servers: Collection[int], before: float
    ) -> bool:
        """Whether a call from before a time needs any of these ps."""

    def abandon(self) -> None:
        """Waits no longer for what runs: it runs again elsewhere."""

    def abandon_cancelled(self, since: float) -> int:
        """Waits no longer for calls that were cancelled before a time."""


class Membership:
    """Finds out which tasks live, and changes who is in the cluster.

    Lanes bring suspicions to `examine` and probe on their own threads; one
    thread delists what is lost and re-admits what answers again. So a dead
    worker never holds up a healthy one, and changes never overlap. The same
    thread asks tasks that closures wait for suspiciously long.

    Guarantees: a lost worker's lanes get no closure from the moment that it
    was found lost until it was re-admitted, in a new generation.
    Guarded by `_lock` (shared by `_changed`): the roster, the lost workers
    that are still listed, the reasons. The queue's lock, and that of a lane
    that is started, may be taken while holding it, never the other way round.
    Never call while holding the lock: the session, subscribers, `Watched`.
    """

    def __init__(
        self,
        session: SessionLike,
        queue: ClosureQueue,
        inspector: Inspector,
        counters: Counters,
        event_board: events.Events,
        *,
        no_worker_timeout_seconds: float,
        forget_worker: Callable[[int], None],
        stall_watch: StallWatch,
        ps_recovery: PsRecovery | None = None,
    ) -> None:
        """Creates the membership; see `start`.

        Workers that the session does not list are late: they get nothing, and
        are asked as lost ones are, until they answer and take part.

        Args:
            session: The connection to the cluster.
            queue: Whose lanes are paused and resumed.
            inspector: Who asks suspects.
            counters: Where losses are counted.
            event_board: Where losses and returns are published.
            no_worker_timeout_seconds: How long closures may wait while no
                worker is present.
            forget_worker: Drops what a lost worker had, by its index.
            stall_watch: Who decides when silence has lasted too long.
            ps_recovery: Who brings back lost ps; None: nobody does.
        """
        self._session = session
        self._workers = tuple(session.cluster.workers)
        self._ps = tuple(session.cluster.parameter_servers)
        self._queue = queue
        self._inspector = inspector
        self._ps_recovery = ps_recovery
        self._counters = counters
        self._events = event_board
        self._no_worker_timeout_seconds = no_worker_timeout_seconds
        self._forget_worker = forget_worker
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._stop = threading.Event()
        listed = session.listed
        late = [task.index for task in self._workers if task not in listed]
        self._roster = Roster(
            len(self._workers), late=late, now=time.monotonic()
        )
        for worker_index in late:
            queue.pause(worker_index)
        self._to_delist: collections.deque[int] = collections.deque()
        # Why each worker that is away was given up or not taken back.
        self._reasons: dict[int, str] = dict.fromkeys(
            late, "it was missing at the start"
        )
        # The rest is used by the membership thread only.
        self._watched: Mapping[int, Watched] = {}
        self._is_wanted: Callable[[], bool] = lambda: True
        self._leave: Callable[[], None] = lambda: None
        self._stall_watch = stall_watch
        self._hanging_calls = HangingCalls(_HANGING_SECONDS)
        self._next_progress = 0.0
        self._waiting_since: float | None = None
        self._thread = threading.Thread(
            target=self._change_members, name="tfps-membership", daemon=True
        )

    def start(
        self,
        watched: Mapping[int, Watched],
        is_wanted: Callable[[], bool] = lambda: True,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts the thread.

        Args:
            watched: Who drives each worker, by its index.
            is_wanted: Whether anybody can still schedule. Where nobody can,
                and nothing runs, the thread ends within some seconds, and
                with it the lanes.
            leave: Called on the thread before it ends so.
        """
        self._watched = watched
        self._is_wanted = is_wanted
        self._leave = leave
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Stops the thread; False if it is still busy after the timeout."""
        self._inspector.stop()
        self._stop.set()
        if self._ps_recovery is not None:
            self._ps_recovery.stop()
        with self._lock:
            self._changed.notify_all()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def generation(self, worker_index: int) -> int:
        """How often the worker was re-admitted."""
        with self._lock:
            return self._roster.generation(worker_index)

    @property
    def num_changes(self) -> int:
        """Another number whenever the cluster has changed."""
        return self._session.num_changes

    def is_present(self, worker_index: int, generation: int) -> bool:
        """Whether the worker takes part, still in that generation."""
        with self._lock:
            return self._roster.is_present(worker_index, generation)

    @property
    def absent(self) -> tuple[int, ...]:
        """Indices of the workers that are away, ascending."""
        with self._lock:
            return self._roster.absent

    def examine(
        self,
        failure: failures.Failure,
        worker_index: int,
        generation: int,
        *,
        thoroughly: bool,
    ) -> BaseException | None:
        """Asks the suspects of a failure whether they live.

        Called on a lane's thread; takes milliseconds when all of them answer
        or refuse, seconds when a suspect is silent. A worker that is found
        lost is so at once for its lanes.

        Args:
            failure: What the exception points at.
            worker_index: The worker that the closure ran on.
            generation: Its generation when the run began.
            thoroughly: Whether to ask every ps, suspect or not.

        Returns:
            The error for the user if a ps is lost that is not waited for,
            else None.
        """
        if not self.is_present(worker_index, generation):
            return None  # Known, and possibly back: the failure is old news.
        for task in self._ps:
            if task.index in failure.ps and (error := self._examine_ps(task)):
                return error
        for index in failure.workers:
            if index < len(self._workers):
                self._examine_worker(index)
        if thoroughly and self.is_present(worker_index, generation):
            for task in self._ps:
                if error := self._examine_ps(task):
                    return error
        if thoroughly and not self.excuses_failures:
            return self._renew(failure, worker_index, generation)
        return None

    def _renew(
        self, failure: failures.Failure, worker_index: int, generation: int
    ) -> BaseException | None:
        """Has a task that lives, but is of no use, begin anew."""
        # Of that generation: another lane may have had it begin anew already.
        if failure.broken_worker == worker_index:
            self.report_lost(worker_index, generation, _BROKEN)
        for task in self._ps:
            if task.index == failure.broken_ps:
                return self._ps_lost(
                    task, self._inspector.ps_lost(task, _BROKEN)
                )
        return None

    @property
    def is_recovering(self) -> bool:
        """Whether a lost ps is waited for; closures then run again later."""
        return self._ps_recovery is not None and self._ps_recovery.is_under_way

    @property
    def excuses_failures(self) -> bool:
        """Whether closures may fail because a ps is or was away."""
        return (
            self._ps_recovery is not None and self._ps_recovery.excuses_failures
        )

    def await_recovery(self) -> bool:
        """Looks for lost ps, and waits until they are back.

        Returns:
            Whether some were lost and are restored.

        Raises:
            ParameterServerLostError: If one is lost, and nothing can give it
                its values back.
        """
        for task in self._ps:
            error = self._examine_ps(task)
            if error is not None:
                raise error
        recovery = self._ps_recovery
        return recovery is not None and self.is_recovering and recovery.wait()

    def _examine_ps(self, task: Any) -> errors.ParameterServerLostError | None:
        """Begins to bring a ps back if it is lost; the error if nobody can."""
        error = self._inspector.examine_ps(task)
        if error is None:
            return None
        return self._ps_lost(task, error)

    def _ps_lost(
        self, task: Any, error: errors.ParameterServerLostError
    ) -> errors.ParameterServerLostError | None:
        recovery = self._ps_recovery
        if recovery is None or not recovery.can_begin():
            return error
        with self._lock:
            for worker in self._workers:
                self._queue.pause(worker.index)
            recovery.begin(task)
            self._changed.notify_all()
        return None

    def report_lost(
        self, worker_index: int, generation: int, reason: str
    ) -> bool:
        """Declares a worker lost; returns whether that was news."""
        with self._lock:
            if not self._roster.lose(
                worker_index, generation, time.monotonic()
            ):
                return False
            self._reasons[worker_index] = reason
            self._to_delist.append(worker_index)
            self._queue.pause(worker_index)
            self._changed.notify_all()
        self._counters.increment("workers_lost")
        self._events.publish(
            events.WorkerLost(
                worker_index, self._workers[worker_index].address, reason
            )
        )
        return True

    def _examine_worker(self, worker_index: int) -> None:
        generation = self.generation(worker_index)
        if not self.is_present(worker_index, generation):
            return
        reason = self._inspector.why_lost(self._workers[worker_index])
        if reason is not None:
            self.report_lost(worker_index, generation, reason)

    # What the membership thread does.

    def _change_members(self) -> None:
        while not self._stop.is_set():
            # Asked first: who is gone schedules nothing afterwards.
            if not self._is_wanted() and not self._queue.has_work:
                self._leave()
                self._queue.stop()
                return
            try:
                self._bring_back_ps()
                self._delist_lost()
                self._readmit_answering()
                self._give_up_silent()
                self._give_up_hanging()
                self._give_up_cancelled()
                self._say_if_nobody_is_left()
            except Exception:
                # Without this thread no worker would ever come back.
                logger.exception("Changing the membership failed; once more")
                self._stop.wait(_RETRY_SECONDS)
            self._wait_for_news()

    def _wait_for_news(self) -> None:
        """Waits for a loss, for the next thing to do, or to be stopped."""
        with self._lock:
            if self._to_delist or self._stop.is_set():
                return
            now = time.monotonic()
            wait_seconds = _WATCH_INTERVAL_SECONDS
            if self.is_recovering:
                wait_seconds = _RECOVERY_INTERVAL_SECONDS
            due_seconds = self._roster.seconds_until_due(now)
            if due_seconds is not None:
                wait_seconds = min(wait_seconds, due_seconds)
            if self._waiting_since is not None:
                waited_seconds = now - self._waiting_since
                left_seconds = self._no_worker_timeout_seconds - waited_seconds
                wait_seconds = min(wait_seconds, max(0.0, left_seconds))
            self._changed.wait(wait_seconds)

    def _bring_back_ps(self) -> None:
        """Goes on with bringing back lost ps; no closure begins meanwhile."""
        recovery = self._ps_recovery
        if recovery is None or not recovery.is_under_way:
            return
        # What goes on for longer needs no lost ps, or is found by the watch.
        self._queue.wait_until_quiet(_QUIET_SECONDS)
        lost = recovery.lost
        error = recovery.advance()
        if recovery.is_under_way:
            return
        if error is not None:
            self._queue.end_round(error)
        self._hanging_calls.restored(
            [task.index for task in lost], time.monotonic()
        )
        with self._lock:
            for task in self._workers:
                if self._roster.is_present(
                    task.index, self._roster.generation(task.index)
                ):
                    self._queue.resume(task.index)

    def _delist_lost(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                if not self._to_delist:
                    return
                worker_index = self._to_delist[0]
            try:
                gone = self._session.delist(self._workers[worker_index])
            except (
                errors.TaskUnreachableError,
                errors.TaskLostError,
            ) as error:
                # A ps does not answer, and without it nothing can change; or
                # TensorFlow waits for a task that hangs. The thread has more
                # to do than to wait for either.
                logger.warning(
                    "Worker %d is not yet taken out: %s", worker_index, error
                )
                self._end_round_if_a_ps_is_lost()
                self._stop.wait(_RETRY_SECONDS)
                return
            with self._lock:
                self._to_delist.popleft()
            self._forget_worker(worker_index)
            for task in gone:
                if task in self._workers and task.index != worker_index:
                    self.report_lost(
                        task.index,
                        self.generation(task.index),
                        "it did not answer when it was asked",
                    )

    def _end_round_if_a_ps_is_lost(self) -> None:
        for task in self._ps:
            error = self._examine_ps(task)
            if error is not None and self._queue.has_work:
                self._queue.end_round(error)
                for worker in self._watched.values():
                    worker.abandon()
                return

    def _readmit_answering(self) -> None:
        with self._lock:
            due = self._roster.due(time.monotonic())
        for worker_index in due:
            with self._lock:
                # A fresh loss goes first: changing the cluster while a task
                # that is dead is still listed may block until it is back.
                if self._to_delist or self._stop.is_set():
                    return
            self._try_to_readmit(worker_index)

    def _try_to_readmit(self, worker_index: int) -> None:
        task = self._workers[worker_index]
        with self._lock:
            is_late = self._roster.is_late(worker_index)
        try:
            self._session.probe(task, _PROBE_TIMEOUT_SECONDS)
            # Another coordinator of the session may have taken a late one in.
            self._session.readmit(task, unless_listed=is_late)
        except errors.TaskUnreachableError as error:
            self._note_no_answer(worker_index, error.reason)
            return
        except Exception as error:
            logger.warning(
                "Worker %d at %s answers, but could not be re-admitted; "
                "trying again: %s",
                worker_index,
                task.address,
                error,
            )
            self._note_no_answer(worker_index, f"not re-admitted: {error}")
            return
        with self._lock:
            away_seconds = self._roster.admit(worker_index, time.monotonic())
            generation = self._roster.generation(worker_index)
            # Under the lock: a loss of the new generation pauses after this.
            if not self.is_recovering:
                self._queue.resume(worker_index)
        if is_late:
            self._counters.increment("workers_joined")
            self._events.publish(
                events.WorkerJoined(worker_index, task.address, away_seconds)
            )
            return
        self._counters.increment("workers_readmitted")
        self._events.publish(
            events.WorkerReadmitted(
                worker_index, task.address, generation, away_seconds
            )
        )

    def _note_no_answer(self, worker_index: int, reason: str) -> None:
        with self._lock:
            self._reasons[worker_index] = reason
            self._roster.no_answer(worker_index, time.monotonic())

    def _give_up_silent(self) -> None:
        """Asks tasks that may be waited for, and gives up who is silent."""
        now = time.monotonic()
        busy_since = {
            index: worker.busy_since()
            for index, worker in self._watched.items()
        }
        overdue = self._stall_watch.overdue(busy_since, now)
        for worker_index in overdue:
            if not self._is_present_now(worker_index):
                self._watched[worker_index].abandon()
        suspects = self._suspects(busy_since, overdue, now)
        outcomes = bounded_calls.call_all(
            self._inspector.why_lost, suspects, _PROBE_TIMEOUT_SECONDS + 1.0
        )
        for task, outcome in outcomes.items():
            reason = outcome.value
            if outcome.error is not None:
                reason = str(outcome.error)
            if reason is None:
                self._stall_watch.answered(task)
            elif self._stall_watch.silent(task):
                if task in self._ps:
                    self._give_up_ps(task, reason, is_waited_for=bool(overdue))
                else:
                    self._give_up_worker(task.index, reason)

    def _suspects(
        self,
        busy_since: Mapping[int, float | None],
        overdue: Collection[int],
        now: float,
    ) -> list[Any]:
        """The tasks to be asked now."""
        is_roll_call = self._stall_watch.is_roll_call_due(now)
        listed = self._session.listed
        workers = [
            task
            for task in self._workers
            if self._is_present_now(task.index)
            and (
                task.index in overdue
                or self._stall_watch.is_suspect(task)
                # One that runs something is asked if that takes long.
                or (is_roll_call and busy_since.get(task.index) is None)
            )
        ]
        servers = [
            task
            for task in self._ps
            if overdue or is_roll_call or self._stall_watch.is_suspect(task)
        ]
        return [task for task in (*workers, *servers) if task in listed]

    def _is_present_now(self, worker_index: int) -> bool:
        return self.is_present(worker_index, self.generation(worker_index))

    def _give_up_worker(self, worker_index: int, reason: str) -> None:
        self.report_lost(worker_index, self.generation(worker_index), reason)
        if worker_index in self._watched:
            self._watched[worker_index].abandon()

    def _give_up_ps(
        self, task: Any, reason: str, *, is_waited_for: bool
    ) -> None:
        """Has a silent ps brought back, or whoever waits for it fail."""
        error = self._ps_lost(task, self._inspector.ps_lost(task, reason))
        if is_waited_for:
            if error is not None:
                self._queue.end_round(error)
            for worker in self._watched.values():
                worker.abandon()
        if error is not None:
            # The chief itself may wait for it, in any call of TensorFlow's.
            self._session.break_connections(task)

    def _give_up_hanging(self) -> None:
        """Takes out workers whose calls a lost ps has left hanging."""
        for restored in self._hanging_calls.due(time.monotonic()):
            for worker_index, worker in self._watched.items():
                if not worker.hangs_on(restored.parameter_servers, restored.at):
                    continue
                # Taken out and back in, it knows nothing of the call.
                self.report_lost(
                    worker_index, self.generation(worker_index), _HANGS
                )
                worker.abandon()

    def _give_up_cancelled(self) -> None:
        """Waits no longer for cancelled calls that TensorFlow cannot end."""
        since = time.monotonic() - _CANCELLED_SECONDS
        for worker_index, worker in self._watched.items():
            if num_calls := worker.abandon_cancelled(since):
                logger.warning(
                    "%d functions on worker %d were cancelled and go on all "
                    "the same; they are waited for no longer.",
                    num_calls,
                    worker_index,
                )

    def _say_if_nobody_is_left(self) -> None:
        """Tells the log, and at last the user, that no worker is left."""
        now = time.monotonic()
        with self._lock:
            nobody = self._roster.nobody_since is not None
        if not nobody or not self._queue.has_work:
            self._waiting_since = None
            return
        if self._waiting_since is None:
            self._waiting_since = now
            self._next_progress = now
        waited_seconds = now - self._waiting_since
        if waited_seconds >= self._no_worker_timeout_seconds:
            self._waiting_since = None
            self._queue.end_round(self._nobody_error(waited_seconds))
        elif now >= self._next_progress:
            self._next_progress = now + _PROGRESS_SECONDS
            self._events.publish(
                events.NoWorkerLeft(
                    waited_seconds, self._no_worker_timeout_seconds
                )
            )

    def _nobody_error(self, waited_seconds: float) -> errors.WorkerLostError:
        with self._lock:
            reasons = dict(self._reasons)
        tasks = "".join(
            f"\n  worker {task.index} at {task.address}: {reasons[task.index]}"
            for task in self._workers
        )
        return errors.WorkerLostError(
            f"No worker was left for {waited_seconds:.0f} s and none came "
            "back; expected at least one. Received, when asked last:"
            f"{tasks}\nWhat to do: (1) start the workers again, they rejoin "
            "by themselves; (2) call again what raised this; (3) allow more "
            "time with ClusterCoordinator(strategy, "
            "no_worker_timeout_seconds=...). See docs/failure_model.md."
        )
