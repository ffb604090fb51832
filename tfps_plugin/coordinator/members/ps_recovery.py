"""Brings lost parameter servers back; the part of it that decides."""

import dataclasses
import logging
import threading
import time
from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.coordinator.members.inspector import Inspector
from tfps_plugin.coordinator.session_protocol import SessionLike
from tfps_plugin.coordinator.session_protocol import TaskLike
from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.variables.chief import chief_reads

_logger = logging.getLogger("tfps_plugin")

_PROBE_TIMEOUT_SECONDS = 2.0
# How often it is said who is waited for.
_PROGRESS_SECONDS = 30.0
# How long workers may take to find a ps again that is back.
_RECONNECT_SECONDS = 15.0
# How often restoring is tried while all ps answer: a connection may break.
_MAX_FAILURES = 5
# How long one who waits for the end of it sleeps at most.
_WAKE_UP_SECONDS = 1.0


class Restorer(Protocol):
    """Who knows the values that variables had."""

    def can_restore(self) -> bool:
        """Whether there is anything to restore from."""

    def restore(self, tasks: Sequence[TaskLike]) -> tuple[str, int]:
        """Makes and fills again what the tasks held.

        Args:
            tasks: Parameter servers that have lost all they held and are
                part of the cluster again.

        Returns:
            Where the values came from, and how many variables there were.
        """


@dataclasses.dataclass
class _Lost:
    """A parameter server that is away.

    Attributes:
        since: When it was found lost, in seconds of the monotonic clock.
        is_listed: Whether TensorFlow still takes it for a member.
        is_back: Whether it was taken into the cluster again.
    """

    since: float
    is_listed: bool = True
    is_back: bool = False
    next_progress: float = 0.0


class PsRecovery:
    """Waits for lost parameter servers, and has their variables restored.

    Guarantees: from `begin` until everything is restored or given up,
    `is_under_way` is true, and whoever runs closures lets none begin.
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
        """Begins with nobody lost.

        Args:
            session: The connection to the cluster.
            inspector: Who asks suspects.
            restorer: Who knows the values.
            counters: Where recoveries are counted.
            event_board: Where progress is published.
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
        self._lost: dict[TaskLike, _Lost] = {}
        self._num_given_up = 0
        # Of restoring, in a row, while every ps answered.
        self._num_failures = 0
        self._excused_until = 0.0

    @property
    def is_under_way(self) -> bool:
        """Whether a ps is away that is waited for."""
        with self._lock:
            return bool(self._lost)

    @property
    def lost(self) -> tuple[TaskLike, ...]:
        """Who is away, or back and not yet restored."""
        with self._lock:
            return tuple(self._lost)

    @property
    def excuses_failures(self) -> bool:
        """Whether closures may fail because a ps was away.

        Also for some time after it came back: workers that have found no
        connection to it try again once a second.
        """
        with self._lock:
            return bool(self._lost) or (time.monotonic() < self._excused_until)

    def can_begin(self) -> bool:
        """Whether a lost ps could be restored."""
        return self._restorer.can_restore()

    def begin(self, task: TaskLike) -> None:
        """Notes that a ps has lost all that it held."""
        with self._lock:
            present = self._lost.get(task)
            if present is not None and not present.is_back:
                return
            now = time.monotonic()
            self._lost[task] = _Lost(now, next_progress=now)

    def wait(self) -> bool:
        """Waits until nobody is away any more.

        Returns:
            Whether all were restored, and not given up, meanwhile.
        """
        with self._lock:
            given_up = self._num_given_up
            while self._lost:
                self._ended.wait(_WAKE_UP_SECONDS)
            return given_up == self._num_given_up

    def stop(self) -> None:
        """Gives up whoever is away."""
        with self._lock:
            if self._lost:
                self._num_given_up += 1
            self._lost.clear()
            self._ended.notify_all()

    def advance(self) -> errors.ParameterServerLostError | None:
        """Does what can be done now, without waiting for a ps.

        Returns:
            The error for the user if it was given up.
        """
        with self._lock:
            lost = dict(self._lost)
        if not lost:
            return None
        for task, state in lost.items():
            self._take_back(task, state)
        away = {t: s for t, s in lost.items() if not s.is_back}
        if away:
            return self._wait_on(away)
        return self._restore(lost)

    def _take_back(self, task: TaskLike, state: _Lost) -> None:
        """Takes a ps out of the cluster, and into it again if it answers."""
        if state.is_back:
            return
        try:
            if state.is_listed:
                # While a dead task is listed nothing else can be changed.
                self._session.delist(task)
                state.is_listed = False
            self._session.probe(task, _PROBE_TIMEOUT_SECONDS)
            self._session.readmit(task)
        except errors.TaskUnreachableError:
            # It, or another one, which is then found lost, too.
            self._find_others()
            return
        except errors.TaskLostError as error:
            _logger.warning("%s at %s: %s", task, task.address, error)
            return
        state.is_back = True

    def _find_others(self) -> None:
        for task in self._session.cluster.parameter_servers:
            with self._lock:
                state = self._lost.get(task)
            if state is not None and not state.is_back:
                continue
            if self._inspector.examine_ps(task) is not None:
                self.begin(task)

    def _wait_on(
        self, away: dict[TaskLike, _Lost]
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
        self, lost: dict[TaskLike, _Lost]
    ) -> errors.ParameterServerLostError | None:
        tasks = list(lost)
        try:
            source, num_variables = self._restorer.restore(tasks)
        except Exception as error:
            if isinstance(
                error, tf.errors.OpError
            ) and chief_reads.is_about_the_cluster(error):
                # One of them has died again, or another one has.
                self._find_others()
                if any(not s.is_back for s in self._states()):
                    return None
                self._num_failures += 1
                if self._num_failures < _MAX_FAILURES:
                    _logger.warning(
                        "Parameter servers answer, but could not be restored; "
                        "they are taken into the cluster once more: %s",
                        error,
                    )
                    self._take_back_anew(lost)
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
        self._are_restored(lost)
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

    def _take_back_anew(self, lost: dict[TaskLike, _Lost]) -> None:
        with self._lock:
            for task, state in lost.items():
                if self._lost.get(task) is state:
                    state.is_back = False
                    state.is_listed = True

    def _are_restored(self, restored: dict[TaskLike, _Lost]) -> None:
        self._num_failures = 0
        with self._lock:
            self._excused_until = time.monotonic() + _RECONNECT_SECONDS
            for task, state in restored.items():
                # Else it was lost again while it was restored.
                if self._lost.get(task) is state:
                    del self._lost[task]
            self._ended.notify_all()
