"""State of a running job: its tasks, its progress, its last events.

Everything that shows a job shows these values: `tfps status`, `tfps top`, the
dashboard, the Prometheus endpoint and the TensorBoard callback. None always
means "unknown".
"""

import dataclasses
from collections.abc import Mapping

# Values of `TaskState.health`.
HEALTHY = "healthy"
SILENT = "silent"
LOST = "lost"
MISSING = "missing"
RECOVERING = "recovering"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskState:
    """One process of the job.

    Attributes:
        job: "chief", "worker" or "ps".
        index: Number of the task within its job.
        address: `host:port` at which it serves.
        health: "healthy"; "silent", if it takes part, but has not answered the
            last question; "lost", if it was given up, and rejoins when it
            answers; "missing", if it has not joined yet; "recovering", for a
            parameter server that is waited for, or restored.
        detail: Reason for its health, for people; may be empty.
        host: Name of its machine.
        process_id: Its process id there.
        uptime_seconds: Time since its process began.
        num_restarts: Number of times that it was lost and came back.
        processors: Processors that it uses now: 1.5 for one and a half.
        memory_bytes: Memory of the process that is in use (resident).
        memory_limit_bytes: Memory that it may use: that of its control group,
            or of its machine.
        received_bytes_per_second: Bytes that arrive over its connections.
        sent_bytes_per_second: Bytes that leave.
    """

    job: str
    index: int
    address: str
    health: str
    detail: str = ""
    host: str | None = None
    process_id: int | None = None
    uptime_seconds: float | None = None
    num_restarts: int = 0
    processors: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    received_bytes_per_second: float | None = None
    sent_bytes_per_second: float | None = None

    @property
    def name(self) -> str:
        """Name of the task, such as "worker 0"; "chief"."""
        return self.job if self.job == "chief" else f"{self.job} {self.index}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerState(TaskState):
    """A worker.

    Attributes:
        work: What it runs: "fit of <model>", or the name of a function.
        steps_per_second: Its rate, by its latest calls.
        seconds_per_step: Time of a step, in one call.
        input_share: Share of that time in which steps wait for their batch.
        compute_share: Share in which the worker computes.
        wait_share: Share in which it does neither: it waits for parameter
            servers, or, if workers make steps together, for each other.
        closures_in_flight: Number of functions that it runs now.
        num_retries: Number of functions that did not complete on it, and were
            run again.
        staleness: Number of other steps that end during one of its steps, on
            any worker: an estimate of the staleness of its updates.
    """

    work: str | None = None
    steps_per_second: float | None = None
    seconds_per_step: float | None = None
    input_share: float | None = None
    compute_share: float | None = None
    wait_share: float | None = None
    closures_in_flight: int = 0
    num_retries: int = 0
    staleness: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableState:
    """Part of one table that a parameter server holds, without slots.

    Attributes:
        name: Path of the variable.
        num_rows: Number of its rows that are here; 1 for a scalar.
        num_bytes: Their bytes.
        rows_per_second: Rows that lookups ask for here; None if they are not
            counted.
    """

    name: str
    num_rows: int
    num_bytes: int
    rows_per_second: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterServerState(TaskState):
    """A parameter server.

    Attributes:
        num_bytes: Bytes of all variables and shards that it holds, slots too.
        num_rows: Number of rows of its tables, without slots.
        num_variables: Number of variables and shards, slots too.
        updates_per_second: Updates by an optimizer that it makes; each step
            makes one.
        tables: Its most looked-up tables, or the largest ones if lookups are
            not counted; the first comes first.
    """

    num_bytes: int = 0
    num_rows: int = 0
    num_variables: int = 0
    updates_per_second: float | None = None
    tables: tuple[TableState, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobState:
    """Work of the program.

    Attributes:
        work: "fit of <model>", "evaluate of <model>", or "" if the program
            runs none of these.
        is_running: Whether it still runs; if not, the rest is of the last one.
        epoch: Number of the epoch, from 1.
        num_epochs: Number of epochs.
        step: Number of steps of this epoch that are done.
        steps_per_epoch: Number of steps of an epoch.
        total_steps: Number of steps of `fit` and `evaluate`, and of scheduled
            `tf.function`s, that the cluster has completed since the strategy
            has a coordinator. As long as there are none of these, it is the
            number of scheduled Python functions.
        metrics: The latest logs, such as "loss", by name; of the latest epoch
            that has ended, if that has more of them.
        steps_per_second: Steps of all workers together.
        examples_per_second: Examples likewise.
        running_seconds: Time since the work began.
    """

    work: str = ""
    is_running: bool = False
    epoch: int | None = None
    num_epochs: int | None = None
    step: int | None = None
    steps_per_epoch: int | None = None
    total_steps: int = 0
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    steps_per_second: float | None = None
    examples_per_second: float | None = None
    running_seconds: float | None = None

    @property
    def loss(self) -> float | None:
        """The latest loss; None if there is none of this name."""
        return self.metrics.get("loss")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointState:
    """The newest checkpoint that the program has written.

    Attributes:
        path: Prefix of its files.
        written_at: When it was complete, in seconds since the epoch of Unix.
        seconds: Time that writing took.
    """

    path: str
    written_at: float
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class EventState:
    """An event of the job.

    Attributes:
        time: When it was published, in seconds since the epoch of Unix.
        kind: Name of its class in `tfps.events`, such as "WorkerLost".
        level: "INFO", "WARNING" or "ERROR".
        text: A sentence.
    """

    time: float
    kind: str
    level: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterState:
    """State of a job at one moment.

    Attributes:
        time: The moment, in seconds since the epoch of Unix.
        version: Release of this package.
        program: Name of the program's file.
        consistency: How workers wait for each other, such as "Async()".
        chief: The process that runs the program.
        workers: All workers, by index.
        parameter_servers: All parameter servers, by index.
        job: What the program runs.
        last_checkpoint: The newest checkpoint; None if there is none.
        events: The latest events, oldest first.
        counters: Numbers that only grow, such as "workers_lost"; see
            `ClusterCoordinator.counters`.
        gathered_in_seconds: Time that it took to gather all this.
    """

    time: float
    version: str
    program: str
    consistency: str
    chief: TaskState
    workers: tuple[WorkerState, ...] = ()
    parameter_servers: tuple[ParameterServerState, ...] = ()
    job: JobState = dataclasses.field(default_factory=JobState)
    last_checkpoint: CheckpointState | None = None
    events: tuple[EventState, ...] = ()
    counters: Mapping[str, int] = dataclasses.field(default_factory=dict)
    gathered_in_seconds: float = 0.0

    @property
    def tasks(self) -> tuple[TaskState, ...]:
        """The chief, the workers and the parameter servers."""
        return (self.chief, *self.workers, *self.parameter_servers)
