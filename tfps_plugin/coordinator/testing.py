"""A cluster without processes, and who listens to one, for tests."""

import contextlib
import dataclasses
import threading
import types
from typing import Any

from tfps_plugin import errors
from tfps_plugin.cluster.chief import connection
from tfps_plugin.coordinator.closures.closure import ClosureState
from tfps_plugin.strategy.chief_runs import ChiefRuns


@dataclasses.dataclass(frozen=True)
class FakeTask:
    """A worker or ps that exists in name only."""

    job: str
    index: int
    address: str


class FakeListener:
    """Writes down how closures ended.

    `told` has the state, the result or error, and the worker that ran the
    closure last, in the order of the ends.
    """

    def __init__(self) -> None:
        self.told: list[tuple[ClosureState, Any, int | None]] = []

    def set_outcome(
        self, state: ClosureState, outcome: Any, worker_index: int | None
    ) -> None:
        """Takes one end."""
        self.told.append((state, outcome, worker_index))


@dataclasses.dataclass(frozen=True)
class FakeCluster:
    """Who is in the cluster."""

    workers: tuple[FakeTask, ...]
    parameter_servers: tuple[FakeTask, ...]


@dataclasses.dataclass(frozen=True)
class FakeStatus:
    """What a task says of itself."""

    incarnation: int


class FakeSession:
    """A connection to tasks that die and return as a test says.

    All closures run on this machine's CPU. `log` lists the membership changes
    that were made, `broken` to whom connections were broken.

    Guarantees: changes of one thread are seen by all others.
    Guarded by `_lock`: everything. Nothing is called while holding it.
    """

    def __init__(self, num_workers: int = 2, num_ps: int = 1) -> None:
        self.cluster = FakeCluster(
            tuple(
                FakeTask("worker", index, f"worker-{index}:1")
                for index in range(num_workers)
            ),
            tuple(
                FakeTask("ps", index, f"ps-{index}:1")
                for index in range(num_ps)
            ),
        )
        # As the real one: variables made from now on belong to it.
        self.connection = connection.begin()
        self._lock = threading.Lock()
        tasks = (*self.cluster.workers, *self.cluster.parameter_servers)
        # What the task's process has now, or None while it is dead.
        self._living: dict[FakeTask, int | None] = dict.fromkeys(tasks, 1)
        # What the chief is connected to.
        self._connected: dict[FakeTask, int] = dict.fromkeys(tasks, 1)
        self._listed = frozenset(tasks)
        self._num_starts = 1
        self.log: list[str] = []
        self.broken: list[FakeTask] = []

    @property
    def num_changes(self) -> int:
        """How many changes were made."""
        with self._lock:
            return len(self.log)

    @property
    def listed(self) -> frozenset[FakeTask]:
        """The tasks that the chief is connected to."""
        with self._lock:
            return self._listed

    def leave_out(self, job: str, index: int) -> None:
        """Has a task be one that had not answered when it all began."""
        self.kill(job, index)
        with self._lock:
            self._listed -= {self._task(job, index)}

    def kill(self, job: str, index: int) -> None:
        """Has a task answer no more."""
        with self._lock:
            self._living[self._task(job, index)] = None

    def start(self, job: str, index: int) -> None:
        """Has a task answer again, as a new process."""
        with self._lock:
            self._num_starts += 1
            self._living[self._task(job, index)] = self._num_starts

    def device(self, task: FakeTask) -> str:
        """This machine's CPU, whichever task it is."""
        return "/device:CPU:0"

    def incarnation(self, task: FakeTask) -> int:
        """The incarnation that the chief is connected to."""
        with self._lock:
            return self._connected[task]

    def probe(self, task: FakeTask, timeout_seconds: float) -> FakeStatus:
        """What the task says of itself, at once."""
        with self._lock:
            incarnation = self._living[task]
        if incarnation is None:
            raise errors.TaskUnreachableError(
                f"{task} is dead", address=task.address, reason="refused"
            )
        return FakeStatus(incarnation)

    def break_connections(self, task: FakeTask) -> None:
        """Notes that it was asked for."""
        with self._lock:
            self.broken.append(task)

    def delist(self, task: FakeTask) -> frozenset[FakeTask]:
        """Notes that the task was taken out."""
        with self._lock:
            others = self._listed - {task}
        for other in others:
            if other.job == "ps":
                self.probe(other, 0.0)
        with self._lock:
            self._listed = others
            self.log.append(f"delist {task.job} {task.index}")
        return frozenset({task})

    def readmit(self, task: FakeTask, *, unless_listed: bool = False) -> None:
        """Connects to the task's present incarnation."""
        with self._lock:
            incarnation = self._living[task]
            if (
                unless_listed
                and task in self._listed
                and incarnation == self._connected[task]
            ):
                return
            if incarnation is None:
                raise errors.InternalError(f"readmitted a dead task: {task}")
            self._connected[task] = incarnation
            self._listed = self._listed | {task}
            self.log.append(f"readmit {task.job} {task.index}")

    def _task(self, job: str, index: int) -> FakeTask:
        tasks = {
            "worker": self.cluster.workers,
            "ps": self.cluster.parameter_servers,
        }
        return tasks[job][index]


class FakeStrategy:
    """A strategy that is nothing but a session and a scope."""

    def __init__(
        self,
        session: Any = None,
        max_closures_in_flight_per_worker: int | None = 2,
        prefetch_embeddings: bool | None = None,
    ) -> None:
        self.session = FakeSession() if session is None else session
        self.max_closures_in_flight_per_worker = (
            max_closures_in_flight_per_worker
        )
        self.prefetch_embeddings = prefetch_embeddings
        self._cluster_coordinator: Any = None
        self._chief_runs = ChiefRuns()

    @property
    def extended(self) -> Any:
        """What the coordinator asks of the part behind the strategy."""
        return types.SimpleNamespace(chief_runs=self._chief_runs)

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """A scope that changes nothing."""
        return contextlib.nullcontext()

    def fused(self, function: Any, owner: Any = None) -> Any:
        """The function, as it is."""
        del owner
        return function
