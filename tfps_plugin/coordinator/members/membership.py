"""Membership of the workers in the job."""

import collections
import threading
import time
from collections.abc import Collection

from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator.elastic.uses import Use
from tfps_plugin.coordinator.elastic.uses import Uses
from tfps_plugin.coordinator.lanes.lane_queue import LaneQueue
from tfps_plugin.coordinator.members.ps_recovery import PsRecovery
from tfps_plugin.coordinator.members.roster import Roster
from tfps_plugin.coordinator.session_protocol import SessionLike
from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.counters import Counters

# Interval between two probes of a lost ps.
_RECOVERY_INTERVAL_SECONDS = 0.25
# Interval at which a wait returns to Python by itself.
_WAKE_UP_SECONDS = 1.0


class Membership:
    """Keeps track of which workers may run closures.

    Lanes ask here about their worker. Losses of workers are reported
    here, on any thread. One thread (`MembershipThread`) then changes the
    cluster, so that a dead worker never delays a healthy one, and changes
    never overlap.

    Guarantees: the lanes of a lost worker get no closure from its report on
    until it is admitted again, in a new generation. No lane gets a closure
    while a parameter server is being recovered.
    Guarded by `_lock` (shared by `_changed`): the workers, the roster, the
    workers that leave, the lost ones that the cluster still lists, the reasons.
    The locks of the queue, of the
    recovery, and of a lane that is started may be taken while holding it,
    never the other way round.
    Never call while holding the lock: the session, subscribers, listeners of
    closures.

    Attributes:
        uses: The workers that something needs.
    """

    def __init__(
        self,
        session: SessionLike,
        lanes: LaneQueue,
        counters: Counters,
        event_board: events.Events,
        ps_recovery: PsRecovery | None = None,
    ) -> None:
        """Creates the membership.

        Workers that the session does not list are late: they get no closure,
        and are probed like lost ones until they answer.

        Args:
            session: The connection to the cluster.
            lanes: The queue whose workers are paused and resumed.
            counters: Counts losses and returns.
            event_board: Publishes losses and returns.
            ps_recovery: Recovers lost ps; None: the loss of a ps is an error.
        """
        self._session = session
        self._workers: tuple[Task, ...] = tuple(session.cluster.workers)
        self._lanes = lanes
        self._counters = counters
        self._events = event_board
        self._ps_recovery = ps_recovery
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        listed = session.listed
        removed = set(self._workers) - set(session.workers)
        late = [
            task.index
            for task in self._workers
            if task not in listed or task in removed
        ]
        self._roster = Roster(
            len(self._workers), late=late, now=time.monotonic()
        )
        for task in removed:
            self._roster.retire(task.index)
        # Workers that begin nothing new, because they are about to leave; and
        # whether nothing may keep them from it any more.
        self._leaving: dict[int, bool] = {}
        self.uses = Uses()
        for worker_index in late:
            lanes.tell(lanes.pause(worker_index))
        self._to_delist: collections.deque[int] = collections.deque()
        # Why each absent worker was given up or not admitted.
        self._reasons: dict[int, str] = dict.fromkeys(
            late, "it was missing at the start"
        )
        # Workers that were added, and have not answered yet.
        self._added: set[int] = set()
        self._is_over = False

    def generation(self, worker_index: int) -> int:
        """Returns the number of times the worker was readmitted."""
        with self._lock:
            return self._roster.generation(worker_index)

    @property
    def num_changes(self) -> int:
        """A number that differs after every change of the cluster."""
        return self._session.num_changes

    def is_present(
        self, worker_index: int, generation: int | None = None
    ) -> bool:
        """Returns whether the worker takes part.

        Args:
            worker_index: The worker.
            generation: Whether it has to be in that generation; None: in any.
        """
        with self._lock:
            if generation is None:
                generation = self._roster.generation(worker_index)
            return self._roster.is_present(worker_index, generation)

    @property
    def workers(self) -> tuple[Task, ...]:
        """All workers by index, also those that were removed."""
        with self._lock:
            return self._workers

    @property
    def indices(self) -> tuple[int, ...]:
        """Indices of the workers that belong to the cluster, ascending."""
        with self._lock:
            return self._roster.indices

    def use_present(self) -> Use:
        """Keeps the workers that are present, until they are released."""
        with self._lock:
            return self.uses.begin(
                set(self._roster.present) - self._leaving.keys()
            )

    def use(
        self, workers: Collection[int], *, also_leaving: bool = False
    ) -> Use | None:
        """Keeps some workers from leaving, until they are released.

        Args:
            workers: Their indices. They need not be present.
            also_leaving: Whether workers that are about to leave may be used,
                too, until `let_nothing_keep`.

        Returns:
            The use; None if one of them leaves.
        """
        with self._lock:
            leaves = [self._leaving[w] for w in workers if w in self._leaving]
            if any(leaves) or (leaves and not also_leaving):
                return None
            return self.uses.begin(workers)

    def let_nothing_keep(self, worker_index: int) -> bool:
        """Lets nothing keep a worker any more that is about to leave.

        Args:
            worker_index: The worker.

        Returns:
            Whether that is so; otherwise something keeps it now.
        """
        with self._lock:
            if not self.uses.wait_until_free(worker_index, 0.0):
                return False
            if worker_index in self._leaving:
                self._leaving[worker_index] = True
            return True

    def add(self, task: Task) -> None:
        """Adds a worker, which takes part as soon as it answers.

        Args:
            task: One with the next index; or one that was removed.
        """
        now = time.monotonic()
        with self._lock:
            # Another coordinator may have added others before.
            for each in self._session.cluster.workers[
                len(self._workers) : task.index
            ]:
                self._roster.add(each.index, now)
                self._roster.retire(each.index)
                self._workers = (*self._workers, each)
            if task.index == len(self._workers):
                self._workers = (*self._workers, task)
            self._roster.add(task.index, now)
            self._added.add(task.index)
            self._reasons[task.index] = "it was added, and has not answered yet"
            cancelled = self._lanes.pause(task.index)
            self._changed.notify_all()
        self._lanes.tell(cancelled)

    def begin_to_leave(self, worker_index: int) -> int | None:
        """Gives a worker nothing new to run, except what only it may run.

        Returns:
            Its generation; None if it is absent.
        """
        with self._lock:
            generation = self._roster.generation(worker_index)
            if not self._roster.is_present(worker_index, generation):
                return None
            self._leaving[worker_index] = False
            self._lanes.drain(worker_index)
            return generation

    def stay(self, worker_index: int) -> None:
        """Undoes `begin_to_leave`."""
        with self._lock:
            self._leaving.pop(worker_index, None)
            if not self.is_recovering and (
                worker_index in self._roster.present
            ):
                self._lanes.resume(worker_index)

    def leave(
        self, worker_index: int, generation: int, *, for_good: bool
    ) -> None:
        """Has a worker that runs nothing leave, as one that is lost.

        Args:
            worker_index: The worker.
            generation: Its generation when it began to leave; if it was lost
                since, there is nothing to take out.
            for_good: Whether it is not to be probed.
        """
        with self._lock:
            self._leaving.pop(worker_index, None)
            if for_good:
                # It may have been lost, and be back.
                generation = self._roster.generation(worker_index)
            if self._roster.lose(worker_index, generation, time.monotonic()):
                self._to_delist.append(worker_index)
            if for_good:
                self._roster.retire(worker_index)
            self._reasons[worker_index] = "it has left"
            cancelled = self._lanes.pause(worker_index)
            self._changed.notify_all()
        self._lanes.tell(cancelled)

    def retire(self, worker_index: int) -> None:
        """Removes an absent worker: it is probed no more."""
        with self._lock:
            self._roster.retire(worker_index)
            self._changed.notify_all()

    def wait_until_delisted(
        self, worker_index: int, timeout_seconds: float
    ) -> None:
        """Waits until a lost worker is taken out, or the thread has ended.

        It takes longer while a ps does not answer; the thread goes on with it.

        Args:
            worker_index: The worker.
            timeout_seconds: How long to wait at most.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._lock:
            while worker_index in self._to_delist and not self._is_over:
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0:
                    return
                self._changed.wait(min(left_seconds, _WAKE_UP_SECONDS))

    @property
    def absent(self) -> tuple[int, ...]:
        """Indices of the absent workers, ascending."""
        with self._lock:
            return self._roster.absent

    @property
    def reasons(self) -> dict[int, str]:
        """Reasons why workers were last given up or not admitted, by index."""
        with self._lock:
            return dict(self._reasons)

    def away_seconds(self, worker_index: int) -> float:
        """Returns how long a worker has been absent; 0: it is present."""
        with self._lock:
            return self._roster.away_seconds(worker_index, time.monotonic())

    @property
    def is_empty(self) -> bool:
        """True if every worker is absent."""
        with self._lock:
            return self._roster.is_empty

    @property
    def is_recovering(self) -> bool:
        """True while a lost ps is being recovered; closures wait meanwhile."""
        return self._ps_recovery is not None and self._ps_recovery.is_under_way

    @property
    def lost_ps(self) -> tuple[Task, ...]:
        """Lost parameter servers that are waited for or restored."""
        return () if self._ps_recovery is None else self._ps_recovery.lost

    @property
    def excuses_failures(self) -> bool:
        """True while closures may fail because a ps is or was away."""
        return (
            self._ps_recovery is not None and self._ps_recovery.excuses_failures
        )

    def report_lost(
        self, worker_index: int, generation: int, reason: str
    ) -> bool:
        """Declares a worker lost, with immediate effect for its lanes.

        Args:
            worker_index: The worker.
            generation: The generation that is lost.
            reason: Why, for the log and for errors.

        Returns:
            Whether this was news; not if that generation was already lost.
        """
        with self._lock:
            if not self._roster.lose(
                worker_index, generation, time.monotonic()
            ):
                return False
            self._leaving.pop(worker_index, None)
            self._reasons[worker_index] = reason
            self._to_delist.append(worker_index)
            cancelled = self._lanes.pause(worker_index)
            self._changed.notify_all()
        self._lanes.tell(cancelled)
        self._counters.increment("workers_lost")
        self._events.publish(
            events.WorkerLost(
                worker_index, self._workers[worker_index].address, reason
            )
        )
        return True

    def begin_recovery(self, task: Task) -> bool:
        """Pauses all workers and begins to recover a lost ps.

        Returns:
            Whether it has begun; not if there is nothing to restore from.
        """
        recovery = self._ps_recovery
        if recovery is None or not recovery.can_begin():
            return False
        with self._lock:
            cancelled = [
                each
                for worker_index in self._roster.indices
                for each in self._lanes.pause(worker_index)
            ]
            recovery.begin(task)
            self._changed.notify_all()
        self._lanes.tell(cancelled)
        return True

    def await_recovery(self) -> bool:
        """Waits until no ps is being recovered.

        Returns:
            Whether some were, and all of them are restored.
        """
        recovery = self._ps_recovery
        return (
            recovery is not None and recovery.is_under_way and recovery.wait()
        )

    # The rest is called by the membership thread.

    def end_recovery(self) -> None:
        """Resumes the workers that are present after a recovery."""
        with self._lock:
            if self.is_recovering:
                # Another ps was lost in the meantime.
                return
            for worker_index in self._roster.present:
                self._lanes.resume(worker_index)
                if worker_index in self._leaving:
                    self._lanes.drain(worker_index)

    @property
    def next_to_delist(self) -> int | None:
        """Index of the lost worker to delist first; None if there is none."""
        with self._lock:
            return self._to_delist[0] if self._to_delist else None

    def delisted(self) -> None:
        """Records that `next_to_delist` was delisted."""
        with self._lock:
            self._to_delist.popleft()
            self._changed.notify_all()

    @property
    def due(self) -> tuple[int, ...]:
        """Indices of the absent workers to probe now, ascending."""
        with self._lock:
            return self._roster.due(time.monotonic())

    def is_late(self, worker_index: int) -> bool:
        """Returns whether the worker has never taken part."""
        with self._lock:
            return self._roster.is_late(worker_index)

    def no_answer(self, worker_index: int, reason: str) -> None:
        """Records that an absent worker could not be admitted."""
        with self._lock:
            if worker_index not in self._roster.absent:
                return  # it was removed meanwhile
            self._reasons[worker_index] = reason
            self._roster.no_answer(worker_index, time.monotonic())

    def admit(self, worker_index: int) -> None:
        """Has an absent worker take part, in a new generation."""
        with self._lock:
            if worker_index not in self._roster.absent:
                return  # it was removed meanwhile
            address = self._workers[worker_index].address
            was_added = worker_index in self._added
            self._added.discard(worker_index)
            self._leaving.pop(worker_index, None)
            was_late = self._roster.is_late(worker_index)
            away_seconds = self._roster.admit(worker_index, time.monotonic())
            generation = self._roster.generation(worker_index)
            # Under the lock: a loss of the new generation pauses after this.
            if not self.is_recovering:
                self._lanes.resume(worker_index)
        if was_late:
            self._counters.increment("workers_joined")
            self._events.publish(
                events.WorkerJoined(
                    worker_index, address, away_seconds, was_added
                )
            )
            return
        self._counters.increment("workers_readmitted")
        self._events.publish(
            events.WorkerReadmitted(
                worker_index, address, generation, away_seconds
            )
        )

    def wait_for_news(
        self, timeout_seconds: float, stop: threading.Event
    ) -> None:
        """Waits for a loss, or for an absent worker to be due.

        Args:
            timeout_seconds: How long to wait at most.
            stop: Ends the wait once it is set and `wake` is called.
        """
        with self._lock:
            if self._to_delist or stop.is_set():
                return
            if self.is_recovering:
                timeout_seconds = min(
                    timeout_seconds, _RECOVERY_INTERVAL_SECONDS
                )
            due_seconds = self._roster.seconds_until_due(time.monotonic())
            if due_seconds is not None:
                timeout_seconds = min(timeout_seconds, due_seconds)
            self._changed.wait(timeout_seconds)

    def wake(self) -> None:
        """Ends every `wait_for_news`."""
        with self._lock:
            self._changed.notify_all()

    def end(self) -> None:
        """Ends every wait, because nobody changes the cluster any more."""
        with self._lock:
            self._is_over = True
            self._changed.notify_all()
