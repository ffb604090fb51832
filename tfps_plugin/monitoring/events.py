"""Typed events of a job, published to the log and to subscribers.

coordinator = tfps.ClusterCoordinator(strategy)
coordinator.events.subscribe(print)
"""

import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import ClassVar

_logger = logging.getLogger("tfps_plugin.monitoring")


@dataclasses.dataclass(frozen=True)
class Event:
    """Base class of all events; `str(event)` is a sentence for the log.

    Attributes:
        level: Level of `logging` at which the event is logged.
    """

    level: ClassVar[int] = logging.INFO


@dataclasses.dataclass(frozen=True)
class WorkerLost(Event):
    """A worker died or was restarted; the others continue without it.

    Args:
        worker_index: Index of the worker.
        address: Its address, `host:port`.
        reason: Error that revealed the loss.
    """

    worker_index: int
    address: str
    reason: str

    level: ClassVar[int] = logging.WARNING

    def __str__(self) -> str:
        return (
            f"Worker {self.worker_index} at {self.address} is lost: "
            f"{self.reason}. The other workers take over its closures; it "
            "rejoins if it is started again."
        )


@dataclasses.dataclass(frozen=True)
class WorkerReadmitted(Event):
    """A lost worker answers again and takes part in the job.

    Args:
        worker_index: Index of the worker.
        address: Its address, `host:port`.
        generation: Number of times that it was lost and came back.
        away_seconds: Time for which it was lost.
    """

    worker_index: int
    address: str
    generation: int
    away_seconds: float

    # The same level as the loss, because whoever saw that waits for this.
    level: ClassVar[int] = logging.WARNING

    def __str__(self) -> str:
        return (
            f"Worker {self.worker_index} at {self.address} is back after "
            f"{self.away_seconds:.1f} s (generation {self.generation}); its "
            "datasets and local copies are created again."
        )


@dataclasses.dataclass(frozen=True)
class ParameterServersChanged(Event):
    """A parameter server was added or removed, and training goes on.

    Args:
        ps_indices: Indices of the parameter servers that there are now.
        num_bytes: Bytes of the variables and shards that have moved.
        seconds: Time from the request to the end.
        paused_seconds: Time for which training was paused in the end, without
            that for which functions are traced again.
    """

    ps_indices: tuple[int, ...]
    num_bytes: int
    seconds: float
    paused_seconds: float

    level: ClassVar[int] = logging.WARNING

    def __str__(self) -> str:
        return (
            f"The parameter servers are now {list(self.ps_indices)}: "
            f"{self.num_bytes / 1e6:.1f} MB have moved in "
            f"{self.seconds:.1f} s, for the last {self.paused_seconds:.2f} s "
            "of which training was paused."
        )


@dataclasses.dataclass(frozen=True)
class VariablesMoved(Event):
    """Variables were placed by the traffic of the first steps.

    Args:
        hottest_before: Share of all traffic that the busiest parameter server
            had, from 0 to 1.
        hottest_after: The same in their new places.
        num_bytes: Bytes of the variables and shards that have moved.
        seconds: Time from the decision to the end.
        paused_seconds: Time for which training was paused in the end, without
            that for which functions are traced again.
    """

    hottest_before: float
    hottest_after: float
    num_bytes: int
    seconds: float
    paused_seconds: float

    def __str__(self) -> str:
        return (
            "Variables are placed by traffic: the busiest parameter server has "
            f"{self.hottest_after:.0%} of it, not {self.hottest_before:.0%}. "
            f"{self.num_bytes / 1e6:.1f} MB have moved in {self.seconds:.1f} "
            f"s, for the last {self.paused_seconds:.2f} s of which training "
            "was paused."
        )


@dataclasses.dataclass(frozen=True)
class WorkerJoined(Event):
    """A worker that was missing at the start, or was added, has joined the job.

    Args:
        worker_index: Index of the worker.
        address: Its address, `host:port`.
        late_seconds: Time until it joined: from the start of the job, or since
            it was added.
        was_added: Whether it was added while the job ran.
    """

    worker_index: int
    address: str
    late_seconds: float
    was_added: bool = False

    # The same level as the line that reported it missing.
    level: ClassVar[int] = logging.WARNING

    def __str__(self) -> str:
        which = "was added" if self.was_added else "was missing at the start"
        return (
            f"Worker {self.worker_index} at {self.address}, which {which}, has "
            f"joined after {self.late_seconds:.1f} s."
        )


@dataclasses.dataclass(frozen=True)
class WorkerLeft(Event):
    """A worker has ended what it ran, and has left the job.

    Args:
        worker_index: Index of the worker.
        address: Its address, `host:port`.
        seconds: Time from the request until it had left.
        for_good: Whether it was removed. If not, it takes part again when it
            answers.
    """

    worker_index: int
    address: str
    seconds: float
    for_good: bool

    # The same level as its return.
    level: ClassVar[int] = logging.WARNING

    def __str__(self) -> str:
        after = (
            "It was removed."
            if self.for_good
            else "It takes part again if it is started again."
        )
        return (
            f"Worker {self.worker_index} at {self.address} has left after "
            f"{self.seconds:.1f} s; all that it ran came to its end. {after}"
        )


@dataclasses.dataclass(frozen=True)
class WorkerSlow(Event):
    """A worker is slower than the others; published once.

    Args:
        worker_index: Index of the worker.
        address: Its address, `host:port`.
        steps_per_second: Its rate.
        median_steps_per_second: The median of the rates of the other workers.
        slow_at: What it is slow at: "input", "compute", "network", or "compute
            or network" if that could not be measured.
        detail: What was found, a clause for people; may be empty.
        is_waited_for: Whether workers make steps together, so that all have
            its rate. `median_steps_per_second` is the one that they could have.
    """

    worker_index: int
    address: str
    steps_per_second: float
    median_steps_per_second: float
    slow_at: str
    detail: str
    is_waited_for: bool = False

    level: ClassVar[int] = logging.WARNING

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        who = f"Worker {self.worker_index} at {self.address} is slow"
        if self.is_waited_for:
            return (
                f"{who}, and the others wait for it: they make "
                f"{self.steps_per_second:.3g} steps a second, and could make "
                f"about {self.median_steps_per_second:.3g}. It is slow at "
                f"{self.slow_at}{detail}."
            )
        return (
            f"{who}: it makes {self.steps_per_second:.3g} steps a second, the "
            f"median of the others is {self.median_steps_per_second:.3g}. It "
            f"is slow at {self.slow_at}{detail}. The others take over what it "
            "does not get done."
        )


@dataclasses.dataclass(frozen=True)
class NoWorkerLeft(Event):
    """All workers are lost while closures wait; published again and again.

    Args:
        waiting_seconds: Time waited so far.
        deadline_seconds: Longest time to wait.
    """

    waiting_seconds: float
    deadline_seconds: float

    level: ClassVar[int] = logging.WARNING

    def __str__(self) -> str:
        return (
            "No worker is left to run closures; waited "
            f"{self.waiting_seconds:.0f} s of at most "
            f"{self.deadline_seconds:.0f} s for one to come back."
        )


@dataclasses.dataclass(frozen=True)
class ParameterServerLost(Event):
    """A parameter server was lost, and with it the variables that it held.

    Args:
        ps_index: Index of the parameter server.
        address: Its address, `host:port`.
        reason: Error that revealed the loss.
    """

    ps_index: int
    address: str
    reason: str

    level: ClassVar[int] = logging.ERROR

    def __str__(self) -> str:
        return (
            f"Parameter server {self.ps_index} at {self.address} is lost: "
            f"{self.reason}."
        )


@dataclasses.dataclass(frozen=True)
class WaitingForParameterServer(Event):
    """Training waits for a lost parameter server; published again and again.

    Args:
        ps_index: Index of the parameter server.
        address: Its address, `host:port`.
        waiting_seconds: Time waited so far.
        deadline_seconds: Longest time to wait.
    """

    ps_index: int
    address: str
    waiting_seconds: float
    deadline_seconds: float

    level: ClassVar[int] = logging.WARNING

    def __str__(self) -> str:
        return (
            f"Training waits for parameter server {self.ps_index} at "
            f"{self.address}: {self.waiting_seconds:.0f} s of at most "
            f"{self.deadline_seconds:.0f} s."
        )


@dataclasses.dataclass(frozen=True)
class ParameterServerRecovered(Event):
    """A parameter server is back, and its variables are restored.

    Args:
        ps_index: Index of the parameter server.
        address: Its address, `host:port`.
        source: Description of where the values came from.
        num_variables: Number of restored variables and shards.
        away_seconds: Time for which it was lost.
    """

    ps_index: int
    address: str
    source: str
    num_variables: int
    away_seconds: float

    level: ClassVar[int] = logging.WARNING

    def __str__(self) -> str:
        return (
            f"Parameter server {self.ps_index} at {self.address} is back "
            f"after {self.away_seconds:.1f} s; its {self.num_variables} "
            f"variables were restored from {self.source}."
        )


@dataclasses.dataclass(frozen=True)
class CheckpointWritten(Event):
    """A checkpoint is complete.

    Args:
        path: Prefix of the checkpoint.
        seconds: Time that writing took.
    """

    path: str
    seconds: float

    def __str__(self) -> str:
        return (
            f"The checkpoint {self.path} was written in {self.seconds:.1f} s."
        )


@dataclasses.dataclass(frozen=True)
class CheckpointFailed(Event):
    """A checkpoint could not be written; earlier ones are intact.

    Args:
        path: Prefix of the checkpoint.
        reason: The error.
    """

    path: str
    reason: str

    level: ClassVar[int] = logging.ERROR

    def __str__(self) -> str:
        return (
            f"The checkpoint {self.path} could not be written: {self.reason}. "
            "Training continues; earlier checkpoints are intact."
        )


@dataclasses.dataclass(frozen=True)
class ClosureRetried(Event):
    """A closure did not complete and is run again.

    Args:
        worker_index: Index of the worker that ran it.
        attempt: Number of attempts so far.
        reason: Error that ended the last attempt.
    """

    worker_index: int
    attempt: int
    reason: str

    def __str__(self) -> str:
        return (
            f"A closure did not complete on worker {self.worker_index} "
            f"(attempt {self.attempt}) and is run again: {self.reason}"
        )


class Events:
    """Board on which events are published.

    Every event is written to the logger `tfps_plugin.monitoring`, with the
    event as the attribute `event` of the record, and then passed to each
    subscriber, on the thread that published it. If a subscriber raises an
    exception, it is logged and affects neither the publisher nor the other
    subscribers.

    Guarantees: a subscriber sees each event published after `subscribe`
    returned, and none published after it was unsubscribed.
    Threading: safe from any thread.
    Guarded by `_lock`: the tuple of subscribers. Subscribers are never called
    while holding it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: tuple[Callable[[Event], None], ...] = ()

    def subscribe(
        self, subscriber: Callable[[Event], None]
    ) -> Callable[[], None]:
        """Passes every later event to a subscriber.

        Args:
            subscriber: Called with each event on the publishing thread. It
                must return quickly and must not wait for closures.

        Returns:
            A function that ends the subscription; further calls do nothing.
        """

        def own(event: Event) -> None:
            # A new function for each call, so that one can subscribe twice.
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
        """Logs an event and passes it to every subscriber.

        Args:
            event: The event.
        """
        _logger.log(event.level, "%s", event, extra={"event": event})
        with self._lock:
            subscribers = self._subscribers
        for subscriber in subscribers:
            try:
                subscriber(event)
            except Exception:
                _logger.exception(
                    "A subscriber raised an exception for the event %r", event
                )
