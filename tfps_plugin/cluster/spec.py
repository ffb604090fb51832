"""Description of a cluster, and of one process in it.

All decisions follow from plain values: this module looks up nothing, connects
to nothing, and does not import TensorFlow. It reports mistakes in a description
before anything is started; each error names the field and its value.
"""

import dataclasses
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

# Names the file that describes the cluster of a chief, in its environment.
FILE_VARIABLE = "TFPS_CLUSTER_FILE"

# Name of the chief in TensorFlow 1, and still in old job templates.
OLD_NAME_OF_CHIEF = "master"
_CLUSTER_JOBS = (CHIEF, WORKER, PARAMETER_SERVER)
# Jobs that a process may have, in the cluster or beside it.
TASK_JOBS = (*_CLUSTER_JOBS, EVALUATOR)
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
        address: `"host:port"` at which its server listens.
    """

    job: str
    index: int
    address: str

    @property
    def name(self) -> str:
        """Name of the task in TensorFlow, a prefix of its devices' names."""
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
        chief_address: `"host:port"` of the chief; None while it has no
            address.

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

        `"master"` is read as `"chief"`. An evaluator is left out, because
        it serves nothing, and no task must wait for it.

        Args:
            jobs: Job name to addresses: a sequence, or a mapping of index to
                address without gaps.

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
            job = CHIEF if name == OLD_NAME_OF_CHIEF else name
            if job == EVALUATOR:
                continue
            if job not in _CLUSTER_JOBS:
                raise errors.ClusterConfigurationError(
                    f"cluster has an unknown job. Expected one of "
                    f"{', '.join(TASK_JOBS)}. Received: cluster.{name}="
                    f"{value!r}. Give the job one of these names, or leave it "
                    "out of the cluster."
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
                "The cluster has several chiefs. Expected at most one. "
                f"Received: cluster.chief={list(chiefs)!r}. Leave one address, "
                "and make the others workers."
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

    def addresses(self, job: str) -> tuple[str, ...]:
        """Returns the addresses of the tasks of a job, by index."""
        return tuple(task.address for task in self.tasks if task.job == job)

    def task(self, job: str, index: int) -> Task:
        """Returns the task of this job and index.

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
        """Returns the same cluster with its chief at `address`."""
        return dataclasses.replace(self, chief_address=address)

    def as_dict(self) -> dict[str, list[str]]:
        """Returns job names to addresses, for `TF_CONFIG` and TensorFlow."""
        jobs = {
            WORKER: list(self.worker_addresses),
            PARAMETER_SERVER: list(self.ps_addresses),
        }
        if self.chief_address is not None:
            jobs[CHIEF] = [self.chief_address]
        return jobs


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """Role of one process, and the cluster that it belongs to.

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
    """Splits a valid `"host:port"`; IPv6 hosts lose their brackets."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """Returns `"host:port"`, with IPv6 hosts in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _read_addresses(job: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        # Resolvers write a job with gaps like this: {0: "host:port", 2: ...}.
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
    """Returns host and port in a form that shows duplicate addresses."""
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
