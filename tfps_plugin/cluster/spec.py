"""What a cluster consists of, and what one process in it is.

Everything here is decided from plain values: nothing is looked up, connected
to or imported from TensorFlow. Whoever describes a cluster badly learns it
here, before anything is started: each error names the field and its value.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tfps_plugin import errors

CHIEF = "chief"
WORKER = "worker"
PARAMETER_SERVER = "ps"
EVALUATOR = "evaluator"

# TensorFlow 1 called the chief so, and old job templates still do.
_OLD_NAME_OF_CHIEF = "master"
_CLUSTER_JOBS = (CHIEF, WORKER, PARAMETER_SERVER)
_TASK_JOBS = (*_CLUSTER_JOBS, EVALUATOR)
_RPC_PREFIX = "grpc://"
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?")
_IPV6_HOST = re.compile(r"\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]")
_PORT = re.compile(r"[0-9]{1,5}")


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of the cluster.

    Attributes:
        job: `"chief"`, `"worker"` or `"ps"`.
        index: Its number within the job, from 0.
        address: `"host:port"` where its server listens.
    """

    job: str
    index: int
    address: str

    @property
    def name(self) -> str:
        """The task as TensorFlow writes it, a prefix of its devices' names."""
        return f"/job:{self.job}/replica:0/task:{self.index}"

    @property
    def host(self) -> str:
        """The address without its port, without brackets around IPv6."""
        return split_address(self.address)[0]

    def __str__(self) -> str:
        return f"{self.job} {self.index}"


@dataclasses.dataclass(frozen=True)
class ClusterSpec:
    """The tasks of a cluster; an evaluator is never one of them.

    Attributes:
        worker_addresses: `"host:port"` of each worker, at least one.
        ps_addresses: `"host:port"` of each parameter server, at least one.
        chief_address: `"host:port"` of the chief, None while nobody has
            given it one.

    Raises:
        ClusterConfigurationError: If an address is malformed or used twice,
            or if there is no worker or no parameter server.
    """

    worker_addresses: tuple[str, ...]
    ps_addresses: tuple[str, ...]
    chief_address: str | None = None

    def __post_init__(self) -> None:
        for job, addresses in (
            (WORKER, self.worker_addresses),
            (PARAMETER_SERVER, self.ps_addresses),
        ):
            if not addresses:
                raise errors.ClusterConfigurationError(
                    f"The cluster has no {job}: parameter-server training "
                    f"needs at least one. Received: cluster.{job}=[]. Add "
                    f'`"{job}": ["host:port", ...]` to the cluster.'
                )
        seen: dict[tuple[str, int], str] = {}
        for task in self.tasks:
            field = f"cluster.{task.job}[{task.index}]"
            endpoint = _endpoint(field, task.address)
            if endpoint in seen:
                raise errors.ClusterConfigurationError(
                    f"Two tasks have one address: {seen[endpoint]} and "
                    f"{field}. Each task needs a host and port of its own. "
                    f"Received: {field}={task.address!r}"
                )
            seen[endpoint] = field

    @classmethod
    def from_dict(cls, jobs: Mapping[str, Any]) -> "ClusterSpec":
        """Reads `{"worker": ["host:port", ...], "ps": [...], ...}`.

        `"master"` is read as `"chief"`; an evaluator is left out, because
        it serves nothing and nobody may wait for it.

        Args:
            jobs: Job name to addresses: a sequence, or a mapping of index to
                address that leaves no index out.

        Returns:
            The cluster.

        Raises:
            ClusterConfigurationError: If this describes no usable cluster.
        """
        if not isinstance(jobs, Mapping):
            raise errors.ClusterConfigurationError(
                "The cluster must map each job to its addresses. "
                f"Received: cluster={jobs!r}"
            )
        addresses: dict[str, tuple[str, ...]] = {}
        for name, value in jobs.items():
            job = CHIEF if name == _OLD_NAME_OF_CHIEF else name
            if job == EVALUATOR:
                continue
            if job not in _CLUSTER_JOBS:
                raise errors.ClusterConfigurationError(
                    f"cluster has an unknown job. Expected one of "
                    f"{', '.join(_TASK_JOBS)}. Received: cluster.{name}="
                    f"{value!r}"
                )
            if job in addresses:
                raise errors.ClusterConfigurationError(
                    "cluster has both 'chief' and 'master', which are two "
                    f"names of one job. Received: cluster.{name}={value!r}. "
                    "Leave 'master' out."
                )
            addresses[job] = tuple(_read_addresses(name, value))
        chiefs = addresses.get(CHIEF, ())
        if len(chiefs) > 1:
            raise errors.ClusterConfigurationError(
                "A cluster has at most one chief. Received: "
                f"cluster.chief={list(chiefs)!r}"
            )
        return cls(
            worker_addresses=addresses.get(WORKER, ()),
            ps_addresses=addresses.get(PARAMETER_SERVER, ()),
            chief_address=chiefs[0] if chiefs else None,
        )

    @property
    def chief(self) -> Task | None:
        """The chief, or None while it has no address."""
        if self.chief_address is None:
            return None
        return Task(CHIEF, 0, self.chief_address)

    @property
    def workers(self) -> tuple[Task, ...]:
        """The workers, by index."""
        return tuple(
            Task(WORKER, index, address)
            for index, address in enumerate(self.worker_addresses)
        )

    @property
    def parameter_servers(self) -> tuple[Task, ...]:
        """The parameter servers, by index."""
        return tuple(
            Task(PARAMETER_SERVER, index, address)
            for index, address in enumerate(self.ps_addresses)
        )

    @property
    def serving_tasks(self) -> tuple[Task, ...]:
        """The tasks that the chief connects to: workers, then ps."""
        return self.workers + self.parameter_servers

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks: the chief if it has an address, workers, then ps."""
        chief = self.chief
        return (() if chief is None else (chief,)) + self.serving_tasks

    def task(self, job: str, index: int) -> Task:
        """The task of this job and index.

        Raises:
            ClusterConfigurationError: If the cluster has no such task.
        """
        for task in self.tasks:
            if (task.job, task.index) == (job, index):
                return task
        raise errors.ClusterConfigurationError(
            f"The cluster has no task {job} {index}. It has: "
            f"{', '.join(str(task) for task in self.tasks)}. Received: "
            f"job={job!r}, index={index!r}"
        )

    def with_chief(self, address: str) -> "ClusterSpec":
        """The same cluster, with its chief at `address`."""
        return dataclasses.replace(self, chief_address=address)

    def as_dict(self) -> dict[str, list[str]]:
        """Job name to addresses, as `TF_CONFIG` and TensorFlow take it."""
        jobs = {
            WORKER: list(self.worker_addresses),
            PARAMETER_SERVER: list(self.ps_addresses),
        }
        if self.chief_address is not None:
            jobs[CHIEF] = [self.chief_address]
        return jobs


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """What one process is, and the cluster it belongs to.

    Attributes:
        cluster: The cluster.
        job: `"chief"`, `"worker"`, `"ps"` or `"evaluator"`.
        index: Its number within the job, from 0.
    """

    cluster: ClusterSpec
    job: str
    index: int

    @property
    def task(self) -> Task:
        """This process as a task of the cluster.

        Raises:
            ClusterConfigurationError: If it is an evaluator, or a chief that
                the cluster gives no address.
        """
        return self.cluster.task(self.job, self.index)


def split_address(address: str) -> tuple[str, int]:
    """Takes a valid `"host:port"` apart; IPv6 hosts lose their brackets."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """Makes `"host:port"`; IPv6 hosts are put in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_tf_config(text: str) -> TaskConfig:
    """Reads the text of a `TF_CONFIG`.

    Args:
        text: JSON with `cluster` and `task`; other keys are ignored.

    Returns:
        What this process is. A chief (or evaluator) need not be listed in
        the cluster: it finds its own address.

    Raises:
        ClusterConfigurationError: If the text is not such JSON; the message
            names the field and the value.
    """
    try:
        config = json.loads(text)
    except ValueError as error:
        raise errors.ClusterConfigurationError(
            f"TF_CONFIG is not valid JSON: {error}. Received: "
            f"TF_CONFIG={text!r}"
        ) from error
    if not isinstance(config, dict):
        raise errors.ClusterConfigurationError(
            "TF_CONFIG must be a JSON object with `cluster` and `task`. "
            f"Received: TF_CONFIG={text!r}"
        )
    if not config.get("cluster"):
        raise errors.ClusterConfigurationError(
            'TF_CONFIG has no cluster. Expected `"cluster": {"worker": '
            '["host:port", ...], "ps": [...]}`. Received: '
            f"cluster={config.get('cluster')!r}. To train without a cluster, "
            "unset TF_CONFIG."
        )
    cluster = ClusterSpec.from_dict(config["cluster"])
    task = config.get("task")
    if not isinstance(task, dict) or "type" not in task:
        raise errors.ClusterConfigurationError(
            "TF_CONFIG does not say which task this process is. Expected "
            '`"task": {"type": "worker", "index": 0}` with one of the types '
            f"{', '.join(_TASK_JOBS)}. Received: task={task!r}"
        )
    return _task_config(
        cluster,
        job=task["type"],
        index=task.get("index", 0),
        job_field="task.type",
        index_field="task.index",
    )


def read_tf_config(
    environ: Mapping[str, str] | None = None,
) -> TaskConfig | None:
    """Reads `TF_CONFIG` of an environment; None if it is unset or empty.

    Args:
        environ: The environment; None is this process's own.

    Raises:
        ClusterConfigurationError: As `parse_tf_config`.
    """
    environ = os.environ if environ is None else environ
    text = environ.get("TF_CONFIG", "").strip()
    return parse_tf_config(text) if text else None


def to_tf_config(
    cluster: ClusterSpec, job: str, index: int, evaluator: bool = False
) -> str:
    """The `TF_CONFIG` that makes a process this task of `cluster`.

    Args:
        cluster: The cluster.
        job: `"chief"`, `"worker"`, `"ps"` or `"evaluator"`.
        index: Its number within the job, from 0.
        evaluator: Whether an evaluator stands beside the cluster. It is then
            named in it, without an address: it serves nothing.

    Raises:
        ClusterConfigurationError: If the cluster has no such task.
    """
    config = _task_config(cluster, job, index, "job", "index")
    jobs = cluster.as_dict()
    if evaluator:
        jobs[EVALUATOR] = []
    return json.dumps(
        {
            "cluster": jobs,
            "task": {"type": config.job, "index": config.index},
        }
    )


def from_cluster_resolver(resolver: Any) -> TaskConfig:
    """Asks a `tf.distribute.cluster_resolver.ClusterResolver`.

    Args:
        resolver: Any object with `cluster_spec()`, `task_type` and `task_id`.
            A resolver that does not say which task this is is the chief's:
            nobody else creates a strategy.

    Raises:
        ClusterConfigurationError: If it describes no usable cluster.
    """
    cluster_spec = resolver.cluster_spec()
    jobs = cluster_spec.as_dict() if cluster_spec else {}
    if not jobs:
        raise errors.ClusterConfigurationError(
            "The cluster resolver describes an empty cluster. Expected at "
            "least one worker and one ps. Received: "
            f"cluster_resolver={type(resolver).__name__} with "
            f"cluster_spec={jobs!r}"
        )
    return _task_config(
        ClusterSpec.from_dict(jobs),
        job=getattr(resolver, "task_type", None) or CHIEF,
        index=getattr(resolver, "task_id", None) or 0,
        job_field="cluster_resolver.task_type",
        index_field="cluster_resolver.task_id",
    )


def _task_config(
    cluster: ClusterSpec, job: Any, index: Any, job_field: str, index_field: str
) -> TaskConfig:
    if job == _OLD_NAME_OF_CHIEF:
        job = CHIEF
    if job not in _TASK_JOBS:
        raise errors.ClusterConfigurationError(
            f"{job_field} is unknown. Expected one of "
            f"{', '.join(_TASK_JOBS)}. Received: {job_field}={job!r}"
        )
    number = _read_index(index)
    num_tasks = {
        WORKER: len(cluster.worker_addresses),
        PARAMETER_SERVER: len(cluster.ps_addresses),
        CHIEF: 1,
    }.get(job)
    if number is None or (num_tasks is not None and number >= num_tasks):
        limit = (
            "a number from 0"
            if num_tasks is None
            else f"a number from 0 to {num_tasks - 1} ({job} has {num_tasks})"
        )
        raise errors.ClusterConfigurationError(
            f"{index_field} is out of range for job {job!r}. Expected "
            f"{limit}. Received: {index_field}={index!r}"
        )
    return TaskConfig(cluster, job, number)


def _read_index(index: Any) -> int | None:
    """A task index as number, None if it is not one."""
    if isinstance(index, str) and index.isdecimal():
        return int(index)
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        return None
    return index


def _read_addresses(job: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        # Resolvers write a job with gaps so: {0: "host:port", 2: ...}.
        missing = sorted(set(range(len(value))) - set(value))
        if missing:
            raise errors.ClusterConfigurationError(
                f"cluster.{job} leaves index {missing[0]} out; tasks are "
                f"numbered from 0 without gaps. Received: cluster.{job}="
                f"{dict(value)!r}"
            )
        value = [value[index] for index in range(len(value))]
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise errors.ClusterConfigurationError(
            f"cluster.{job} must be a list of addresses, "
            f'["host:port", ...]. Received: cluster.{job}={value!r}'
        )
    for index, address in enumerate(value):
        if not isinstance(address, str):
            raise _malformed(f"cluster.{job}[{index}]", address)
        yield address.removeprefix(_RPC_PREFIX)


def _endpoint(field: str, address: str) -> tuple[str, int]:
    """Host and port in a form that shows when two addresses are one."""
    host, _, port = address.rpartition(":")
    valid_host = _HOST.fullmatch(host) or _IPV6_HOST.fullmatch(host)
    if not valid_host or not _PORT.fullmatch(port):
        raise _malformed(field, address)
    if not 0 < int(port) < 65536:
        raise _malformed(field, address)
    host = host.lower().rstrip(".")
    return "127.0.0.1" if host == "localhost" else host, int(port)


def _malformed(field: str, address: Any) -> errors.ClusterConfigurationError:
    return errors.ClusterConfigurationError(
        f'{field} is not an address. Expected "host:port" with a port from 1 '
        f"to 65535. Received: {field}={address!r}"
    )
