"""Recovery of lost parameter servers: waits for them and restores them."""

import dataclasses
import logging
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from tfps_plugin import errors
from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator.members.inspector import Inspector
from tfps_plugin.coordinator.session_protocol import SessionLike
from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.variables.chief import chief_reads

_logger = logging.getLogger("tfps_plugin.coordinator")

_PROBE_TIMEOUT_SECONDS = 2.0
# Interval between two reports of the parameter servers that are awaited.
_PROGRESS_SECONDS = 30.0
# How long workers may take to reconnect to a ps that is back.
_RECONNECT_SECONDS = 15.0
# Number of attempts to restore while all ps answer: a connection may break.
_MAX_FAILURES = 5
# Longest sleep of a thread that waits for the end of a recovery.
_WAKE_UP_SECONDS = 1.0


class Restorer(Protocol):
    """Source of the values that variables had."""

    def can_restore(self) -> bool:
        """Returns whether there is anything to restore from."""

    def restore(self, tasks: Sequence[Task]) -> tuple[str, int]:
        """Creates and fills again the variables that the tasks held.

        Args:
            tasks: Parameter servers that lost everything they held, and are
                part of the cluster again.

        Returns:
            Where the values came from, and the number of variables.
        """


@dataclasses.dataclass
class _Lost:
    """A parameter server that is lost.

    Attributes:
        since: When it was found lost, in seconds of the monotonic clock.
        is_listed: Whether TensorFlow still lists it in the cluster.
        is_back: Whether it was readmitted to the cluster.
        next_progress: When to report next that it is awaited.
    """

    since: float
    is_listed: bool = True
    is_back: bool = False
    next_progress: float = 0.0


class PsRecovery:
    """Waits for lost parameter servers, and restores their variables.

    Guarantees: `is_under_way` is true from `begin` until everything is
    restored or given up. The membership lets no closure begin meanwhile.
    Guarded by `_lock` (shared by `_ended`): the lost ps.
    Never call while holding the lock: the session, the restorer, subscribers.
    Threading: `advance` is called by the membership thread alone.
    """

    def __init__(
        self,
        session: SessionLike,
        inspector: Inspector,
        restorer: Restorer,
        counters: Counters,
        event_board: events.Events,
        *,
        timeout_seconds: float,
    ) -> None:
        """Creates the recovery; no ps is lost.

        Args:
            session: The connection to the cluster.
            inspector: Probes suspects.
            restorer: Restores variables.
            counters: Counts recoveries.
            event_board: Publishes progress.
            timeout_seconds: How long a ps may be away.
        """
        self._session = session
        self._inspector = inspector
        self._restorer = restorer
        self._counters = counters
        self._events = event_board
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._lost: dict[Task, _Lost] = {}
        self._num_given_up = 0
        # Of restoring, in a row, while every ps answered.
        self._num_failures = 0
        self._excused_until = 0.0

    @property
    def is_under_way(self) -> bool:
        """True while a lost ps is awaited or being restored."""
        with self._lock:
            return bool(self._lost)

    @property
    def lost(self) -> tuple[Task, ...]:
        """The ps that are away, or back and not yet restored."""
        with self._lock:
            return tuple(self._lost)

    @property
    def excuses_failures(self) -> bool:
        """True while closures may fail because a ps is or was away.

        This includes some time after it came back: workers that lost their
        connection to it retry once a second.
        """
        with self._lock:
            return bool(self._lost) or (time.monotonic() < self._excused_until)

    def can_begin(self) -> bool:
        """Returns whether a lost ps can be restored."""
        return self._restorer.can_restore()

    def begin(self, task: Task) -> None:
        """Records that a ps lost everything it held."""
        with self._lock:
            present = self._lost.get(task)
            if present is not None and not present.is_back:
                return
            now = time.monotonic()
            self._lost[task] = _Lost(now, next_progress=now)

    def forget(self, task: Task) -> None:
        """Waits no more for a ps: nothing is on it."""
        with self._lock:
            self._lost.pop(task, None)
            self._ended.notify_all()

    def wait(self) -> bool:
        """Waits until no ps is lost.

        Returns:
            Whether all were restored, and none was given up.
        """
        with self._lock:
            given_up = self._num_given_up
            while self._lost:
                self._ended.wait(_WAKE_UP_SECONDS)
            return given_up == self._num_given_up

    def stop(self) -> None:
        """Gives up all lost ps."""
        with self._lock:
            if self._lost:
                self._num_given_up += 1
            self._lost.clear()
            self._ended.notify_all()

    def advance(self) -> errors.ParameterServerLostError | None:
        """Advances the recovery as far as possible without waiting.

        Returns:
            The error for the user if the recovery was given up.
        """
        with self._lock:
            lost = dict(self._lost)
        if not lost:
            return None
        for task, state in lost.items():
            self._try_to_readmit(task, state)
        away = {t: s for t, s in lost.items() if not s.is_back}
        if away:
            return self._check_deadlines(away)
        return self._restore(lost)

    def _try_to_readmit(self, task: Task, state: _Lost) -> None:
        """Delists a ps, and readmits it if it answers."""
        if state.is_back:
            return
        try:
            if state.is_listed:
                # No other change is possible while a dead task is listed.
                self._session.delist(task)
                state.is_listed = False
            self._session.probe(task, _PROBE_TIMEOUT_SECONDS)
            self._session.readmit(task)
        except errors.TaskUnreachableError:
            # This ps does not answer, or another one, which is lost too.
            self._find_other_losses()
            return
        except errors.TaskLostError as error:
            _logger.warning("%s at %s: %s", task, task.address, error)
            return
        state.is_back = True

    def _find_other_losses(self) -> None:
        for task in self._session.parameter_servers:
            with self._lock:
                state = self._lost.get(task)
            if state is not None and not state.is_back:
                continue
            if self._inspector.examine_ps(task) is not None:
                self.begin(task)

    def _check_deadlines(
        self, away: dict[Task, _Lost]
    ) -> errors.ParameterServerLostError | None:
        now = time.monotonic()
        for task, state in away.items():
            waited_seconds = now - state.since
            if waited_seconds >= self._timeout_seconds:
                return self._give_up(
                    self._inspector.ps_lost(
                        task,
                        "it did not come back within "
                        f"{self._timeout_seconds:.0f} s",
                    )
                )
            if now >= state.next_progress:
                state.next_progress = now + _PROGRESS_SECONDS
                self._events.publish(
                    events.WaitingForParameterServer(
                        task.index,
                        task.address,
                        waited_seconds,
                        self._timeout_seconds,
                    )
                )
        return None

    def _restore(
        self, lost: dict[Task, _Lost]
    ) -> errors.ParameterServerLostError | None:
        tasks = list(lost)
        try:
            source, num_variables = self._restorer.restore(tasks)
        except Exception as error:
            if chief_reads.is_about_the_cluster(error):
                # One of them died again, or another ps died.
                self._find_other_losses()
                if any(not s.is_back for s in self._states()):
                    return None
                self._num_failures += 1
                if self._num_failures < _MAX_FAILURES:
                    _logger.warning(
                        "Parameter servers answer, but could not be restored; "
                        "readmitting them once more: %s",
                        error,
                    )
                    self._begin_anew(lost)
                    return None
            reason = self._inspector.ps_lost(
                tasks[0], f"its variables cannot be restored: {error}"
            )
            reason.__cause__ = error
            return self._give_up(reason)
        now = time.monotonic()
        for task, state in lost.items():
            self._inspector.examine_ps(task)
            self._counters.increment("ps_recovered")
            self._events.publish(
                events.ParameterServerRecovered(
                    task.index,
                    task.address,
                    source,
                    num_variables,
                    now - state.since,
                )
            )
        self._note_restored(lost)
        return None

    def _states(self) -> list[_Lost]:
        with self._lock:
            return list(self._lost.values())

    def _give_up(
        self, error: errors.ParameterServerLostError
    ) -> errors.ParameterServerLostError:
        self._num_failures = 0
        self.stop()
        return error

    def _begin_anew(self, lost: dict[Task, _Lost]) -> None:
        with self._lock:
            for task, state in lost.items():
                if self._lost.get(task) is state:
                    state.is_back = False
                    state.is_listed = True

    def _note_restored(self, restored: dict[Task, _Lost]) -> None:
        self._num_failures = 0
        with self._lock:
            self._excused_until = time.monotonic() + _RECONNECT_SECONDS
            for task, state in restored.items():
                # Otherwise it was lost again while it was restored.
                if self._lost.get(task) is state:
                    del self._lost[task]
            self._ended.notify_all()
