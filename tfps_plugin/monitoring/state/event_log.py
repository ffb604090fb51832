"""The latest events of a job, with their times."""

import collections
import logging
import threading
import time

from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.state.cluster_state import CheckpointState
from tfps_plugin.monitoring.state.cluster_state import EventState

# Events that are kept: so many that the losses of a night are among them.
_LENGTH = 200
_FREQUENT = (events.ClosureRetried, events.CheckpointWritten)


class EventLog:
    """The latest events; a subscriber of `events.Events`.

    Closures that run again and checkpoints are not among them: there may be
    many, and they would push out the loss of a task. Counters, and the last
    checkpoint, tell of them.

    Threading: safe from any thread. Guarded by `_lock`: everything.
    """

    def __init__(self) -> None:
        """Begins without events."""
        self._lock = threading.Lock()
        self._events: collections.deque[EventState] = collections.deque(
            maxlen=_LENGTH
        )
        self._recoveries: collections.Counter[int] = collections.Counter()
        self._checkpoint: CheckpointState | None = None

    def add(self, event: events.Event) -> None:
        """Takes an event that was just published."""
        now = time.time()
        with self._lock:
            if isinstance(event, events.CheckpointWritten):
                self._checkpoint = CheckpointState(
                    path=event.path, written_at=now, seconds=event.seconds
                )
            if isinstance(event, events.ParameterServerRecovered):
                self._recoveries[event.ps_index] += 1
            if not isinstance(event, _FREQUENT):
                self._events.append(
                    EventState(
                        time=now,
                        kind=type(event).__name__,
                        level=logging.getLevelName(event.level),
                        text=str(event),
                    )
                )

    @property
    def latest(self) -> tuple[EventState, ...]:
        """The events, oldest first."""
        with self._lock:
            return tuple(self._events)

    @property
    def last_checkpoint(self) -> CheckpointState | None:
        """The newest checkpoint; None if none was written."""
        with self._lock:
            return self._checkpoint

    def num_recoveries(self, ps_index: int) -> int:
        """Returns how often a parameter server was lost and came back."""
        with self._lock:
            return self._recoveries[ps_index]
