"""A cluster without processes, for tests."""

import contextlib
import threading
import types
from collections.abc import Iterable
from typing import Any

from tfps_plugin import errors
from tfps_plugin.cluster.chief import connection
from tfps_plugin.cluster.chief.enrolment import Enrolment
from tfps_plugin.cluster.health import TaskStatus
from tfps_plugin.cluster.serving.messages import Message
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator.closures.closure import ClosureState
from tfps_plugin.strategy.chief_runs import ChiefRuns
from tfps_plugin.strategy.options import SchedulingOptions


class FakeListener:
    """Records how closures ended.

    Attributes:
        told: For each closure, in the order of their ends: its state, its
            result or error, and the worker that ran it last.
    """

    def __init__(self) -> None:
        self.told: list[tuple[ClosureState, Any, int | None]] = []

    def set_outcome(
        self, state: ClosureState, outcome: Any, worker_index: int | None
    ) -> None:
        """Records the end of one closure."""
        self.told.append((state, outcome, worker_index))


class FakeSession:
    """A connection to tasks that die and return when a test says so.

    All closures run on this machine's CPU.

    Guarantees: changes of one thread are seen by all others.
    Guarded by `_lock`: everything. Nothing is called while holding it.

    Attributes:
        log: The changes of the cluster, in order.
        broken: The tasks whose connections were broken.
    """

    def __init__(self, num_workers: int = 2, num_ps: int = 1) -> None:
        self._enrolment = Enrolment(
            ClusterSpec(
                tuple(f"worker-{index}:1" for index in range(num_workers)),
                tuple(f"ps-{index}:1" for index in range(num_ps)),
            )
        )
        # The cluster as its resolver has it; None: it does not say.
        self.described: ClusterSpec | None = None
        # Names of the tasks that answer at addresses.
        self.names: dict[str, str] = {}
        # Whether a task that is added answers, also before.
        self.starts_with_addition = False
        # Messages of tasks that have not been taken.
        self.messages: list[Message] = []
        # As the real one: variables made from now on belong to it.
        self.connection = connection.begin()
        self._lock = threading.Lock()
        tasks = self.cluster.serving_tasks
        # The incarnation of each task; None while it is dead.
        self._living: dict[Task, int | None] = dict.fromkeys(tasks, 1)
        # The incarnations that the chief is connected to.
        self._connected: dict[Task, int] = dict.fromkeys(tasks, 1)
        self._listed = frozenset(tasks)
        self._num_starts = 1
        self._leaving: set[int] = set()
        self.log: list[str] = []
        self.broken: list[Task] = []

    @property
    def cluster(self) -> ClusterSpec:
        """The tasks of the cluster."""
        return self._enrolment.cluster

    @property
    def workers(self) -> tuple[Task, ...]:
        """The workers that were not removed."""
        return self._enrolment.workers

    @property
    def parameter_servers(self) -> tuple[Task, ...]:
        """The ps that were not removed."""
        return self._enrolment.parameter_servers

    def add_worker(self, address: str) -> Task:
        """Adds a worker, which is dead until it is started."""
        return self._add(address, "worker")

    def add_ps(self, address: str) -> Task:
        """Adds a parameter server, likewise."""
        return self._add(address, "ps", joins=True)

    def join_ps(self, task: Task) -> None:
        """Makes a parameter server belong to the cluster."""
        self._enrolment.join(task)

    def _add(self, address: str, job: str, *, joins: bool = False) -> Task:
        task = self._enrolment.add(address, job, joins=joins)
        with self._lock:
            self._living.setdefault(task, None)
        if self.starts_with_addition:
            self.start(task.job, task.index)
        return task

    def note_leaving(self, task: Task) -> None:
        """Makes the task answer no more until it is started again."""
        with self._lock:
            self._leaving.add(self._connected[task])

    def remove(self, task: Task) -> None:
        """Removes a worker or ps."""
        self.retire(task)
        self.let_go(task)

    def retire(self, task: Task) -> None:
        """Removes a worker or ps, which goes on to serve."""
        self._enrolment.remove(task)

    def let_go(self, task: Task) -> None:
        """Records the task as told."""
        with self._lock:
            self.log.append(f"let go {task.job} {task.index}")

    def take_messages(self) -> list[Message]:
        """Returns what a test has put into `messages`."""
        with self._lock:
            taken, self.messages = self.messages, []
        return taken

    def addresses_now(self) -> ClusterSpec:
        """Returns the cluster: no task moves."""
        return self.cluster

    def described_now(self) -> ClusterSpec | None:
        """Returns what a test has set."""
        return self.described

    def names_at(
        self, addresses: Iterable[str], timeout_seconds: float
    ) -> dict[str, str]:
        """Returns what a test has put into `names`."""
        return {a: self.names[a] for a in addresses if a in self.names}

    @property
    def num_changes(self) -> int:
        """Number of changes of the cluster."""
        with self._lock:
            return len(self.log)

    @property
    def listed(self) -> frozenset[Task]:
        """The tasks that the chief is connected to."""
        with self._lock:
            return self._listed

    def leave_out(self, job: str, index: int) -> None:
        """Makes a task one that did not answer at the start."""
        self.kill(job, index)
        with self._lock:
            self._listed -= {self.cluster.task(job, index)}

    def kill(self, job: str, index: int) -> None:
        """Makes a task stop answering."""
        with self._lock:
            self._living[self.cluster.task(job, index)] = None

    def start(self, job: str, index: int) -> None:
        """Makes a task answer again, as a new process."""
        with self._lock:
            self._num_starts += 1
            self._living[self.cluster.task(job, index)] = self._num_starts

    def device(self, task: Task) -> str:
        """Returns this machine's CPU for every task."""
        return "/device:CPU:0"

    def incarnation(self, task: Task) -> int:
        """Returns the incarnation that the chief is connected to."""
        with self._lock:
            return self._connected[task]

    def probe(self, task: Task, timeout_seconds: float) -> TaskStatus:
        """Returns the task's status at once."""
        with self._lock:
            incarnation = self._living.get(
                task, 0 if self.starts_with_addition else None
            )
        if incarnation is None:
            raise errors.TaskUnreachableError(
                f"{task} is dead", address=task.address, reason="refused"
            )
        return TaskStatus((), incarnation)

    def break_connections(self, task: Task) -> None:
        """Records the task."""
        with self._lock:
            self.broken.append(task)

    def delist(self, task: Task) -> frozenset[Task]:
        """Removes the task from the cluster."""
        with self._lock:
            others = self._listed - {task}
        for other in others:
            if other.job == "ps":
                self.probe(other, 0.0)
        with self._lock:
            self._listed = others
            self.log.append(f"delist {task.job} {task.index}")
        return frozenset({task})

    def readmit(self, task: Task, *, unless_listed: bool = False) -> None:
        """Connects to the task's current incarnation."""
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
            if incarnation in self._leaving:
                raise errors.TaskUnreachableError(
                    f"{task} is about to end",
                    address=task.address,
                    reason="it is about to end",
                )
            self._connected[task] = incarnation
            self._listed = self._listed | {task}
            self.log.append(f"readmit {task.job} {task.index}")


class FakeStrategy:
    """A strategy that has only a session and a scope."""

    def __init__(
        self,
        session: Any = None,
        max_closures_in_flight_per_worker: int | None = 2,
        prefetch_embeddings: bool | None = None,
    ) -> None:
        self.session = FakeSession() if session is None else session
        self.scheduling = SchedulingOptions(
            max_closures_in_flight_per_worker=max_closures_in_flight_per_worker,
            prefetch_embeddings=prefetch_embeddings,
        )
        self._cluster_coordinator: Any = None
        self._chief_runs = ChiefRuns()

    @property
    def extended(self) -> Any:
        """The part of `extended` that the coordinator uses."""
        return types.SimpleNamespace(chief_runs=self._chief_runs)

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Returns a scope that changes nothing."""
        return contextlib.nullcontext()

    def fused(self, function: Any, owner: Any = None) -> Any:
        """Returns the function unchanged."""
        del owner
        return function
