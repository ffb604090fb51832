"""Typed events: what happened to the job, told to a log and to listeners."""

import dataclasses
import logging
import threading
from collections.abc import Callable

logger = logging.getLogger("tfps_plugin")


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened; subclasses say what."""

    @property
    def level(self) -> int:
        """How loudly it is logged, a level of `logging`."""
        return logging.INFO


@dataclasses.dataclass(frozen=True)
class WorkerLost(Event):
    """A worker died or was restarted; the others go on without it."""

    worker_index: int
    address: str
    reason: str

    @property
    def level(self) -> int:
        return logging.WARNING

    def __str__(self) -> str:
        return (
            f"Worker {self.worker_index} at {self.address} is lost: "
            f"{self.reason}. Its closures are given to the other workers; it "
            "rejoins if it is started again."
        )


@dataclasses.dataclass(frozen=True)
class WorkerReadmitted(Event):
    """A lost worker answers again and takes part again."""

    worker_index: int
    address: str
    generation: int
    away_seconds: float

    @property
    def level(self) -> int:
        # As loud as the loss: who saw that is waiting for this.
        return logging.WARNING

    def __str__(self) -> str:
        return (
            f"Worker {self.worker_index} at {self.address} is back after "
            f"{self.away_seconds:.1f} s (generation {self.generation}); its "
            "datasets and local copies are built again."
        )


@dataclasses.dataclass(frozen=True)
class WorkerJoined(Event):
    """A worker that was missing at the start answers and takes part."""

    worker_index: int
    address: str
    late_seconds: float

    @property
    def level(self) -> int:
        # As loud as the line that named it as missing.
        return logging.WARNING

    def __str__(self) -> str:
        return (
            f"Worker {self.worker_index} at {self.address}, which was missing "
            f"at the start, has joined {self.late_seconds:.1f} s after it."
        )


@dataclasses.dataclass(frozen=True)
class NoWorkerLeft(Event):
    """Every worker is lost and closures are waiting; repeated as time goes."""

    waiting_seconds: float
    deadline_seconds: float

    @property
    def level(self) -> int:
        return logging.WARNING

    def __str__(self) -> str:
        return (
            "No worker is left to run closures: waited "
            f"{self.waiting_seconds:.0f} s of at most "
            f"{self.deadline_seconds:.0f} s for one to come back."
        )


@dataclasses.dataclass(frozen=True)
class ParameterServerLost(Event):
    """A parameter server died, and with it the variables that it held."""

    ps_index: int
    address: str
    reason: str

    @property
    def level(self) -> int:
        return logging.ERROR

    def __str__(self) -> str:
        return (
            f"Parameter server {self.ps_index} at {self.address} is lost: "
            f"{self.reason}."
        )


@dataclasses.dataclass(frozen=True)
class WaitingForParameterServer(Event):
    """Training pauses until a ps is back; repeated as time goes."""

    ps_index: int
    address: str
    waiting_seconds: float
    deadline_seconds: float

    @property
    def level(self) -> int:
        return logging.WARNING

    def __str__(self) -> str:
        return (
            f"Training waits for parameter server {self.ps_index} at "
            f"{self.address}: {self.waiting_seconds:.0f} s of at most "
            f"{self.deadline_seconds:.0f} s."
        )


@dataclasses.dataclass(frozen=True)
class ParameterServerRecovered(Event):
    """A parameter server is back, with values from a checkpoint."""

    ps_index: int
    address: str
    source: str
    num_variables: int
    away_seconds: float

    @property
    def level(self) -> int:
        return logging.WARNING

    def __str__(self) -> str:
        return (
            f"Parameter server {self.ps_index} at {self.address} is back "
            f"after {self.away_seconds:.1f} s; its {self.num_variables} "
            f"variables have the values of {self.source}."
        )


@dataclasses.dataclass(frozen=True)
class CheckpointFailed(Event):
    """A checkpoint could not be written; the one before is untouched."""

    path: str
    reason: str

    @property
    def level(self) -> int:
        return logging.ERROR

    def __str__(self) -> str:
        return (
            f"The checkpoint {self.path} could not be written: {self.reason}. "
            "Training goes on; earlier checkpoints are untouched."
        )


@dataclasses.dataclass(frozen=True)
class ClosureRetried(Event):
    """A closure did not end and is run again."""

    worker_index: int
    attempt: int
    reason: str

    def __str__(self) -> str:
        return (
            f"A closure did not end on worker {self.worker_index} (attempt "
            f"{self.attempt}) and is run again: {self.reason}"
        )


class Events:
    """Where events are published.

    Every event is written to the logger "tfps_plugin" and then given to each
    subscriber, on the thread that published it. A subscriber that raises is
    logged and does not disturb the publisher or the other subscribers.

    Guarantees: a subscriber sees each event published after `subscribe`
    returned and none published after it was unsubscribed.
    Guarded by `_lock`: the tuple of subscribers.
    Never call while holding the lock: subscribers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: tuple[Callable[[Event], None], ...] = ()

    def subscribe(
        self, subscriber: Callable[[Event], None]
    ) -> Callable[[], None]:
        """Has every later event given to `subscriber`.

        Args:
            subscriber: Called with each event on the publishing thread; it
                must return soon and must not wait for closures.

        Returns:
            A function that ends the subscription; calling it again is fine.
        """

        def own(event: Event) -> None:
            # A wrapper of its own lets one callable subscribe twice.
            subscriber(event)

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers = tuple(
                    each for each in self._subscribers if each is not own
                )

        with self._lock:
            self._subscribers = (*self._subscribers, own)
        return unsubscribe

    def publish(self, event: Event) -> None:
        """Logs the event and gives it to every subscriber."""
        logger.log(event.level, "%s", event)
        with self._lock:
            subscribers = self._subscribers
        for subscriber in subscribers:
            try:
                subscriber(event)
            except Exception:
                logger.exception("A subscriber raised on the event %r", event)
