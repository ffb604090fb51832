"""A job as those describe it who have it run on a cluster."""

import dataclasses
import re
from collections.abc import Iterator

from tfps_plugin.cluster.spec import CHIEF
from tfps_plugin.cluster.spec import EVALUATOR
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER

# The kinds of tasks, in the order of manifests.
KINDS = (CHIEF, PARAMETER_SERVER, WORKER, EVALUATOR)
# Those that have variables or files to write; workers have neither.
WITH_CHECKPOINTS = frozenset({CHIEF, PARAMETER_SERVER, EVALUATOR})
SERVING = frozenset({PARAMETER_SERVER, WORKER})

# From SIGTERM to SIGKILL, a task has as much more than a worker has to leave.
_MARGIN_SECONDS = 5

_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that manifests set themselves, the last ones those of Slurm.
_OWN_VARIABLES = frozenset(
    {
        "PYTHONUNBUFFERED",
        "TF_CONFIG",
        "TFPS_TASK_INDEX",
        *("TFPS_CLUSTER", "TFPS_KIND", "TFPS_RESTART_FROM", "TFPS_TASK"),
    }
)
_LONGEST_LABEL = 63


@dataclasses.dataclass(frozen=True)
class Resources:
    """The share of a machine that a task gets: request and limit.

    Attributes:
        millicores: Thousandths of a core.
        memory_bytes: Main memory.
        gpus: Number of GPUs.
    """

    millicores: int
    memory_bytes: int
    gpus: int = 0


@dataclasses.dataclass(frozen=True)
class TaskGroup:
    """The tasks of one kind.

    Attributes:
        kind: `"chief"`, `"ps"`, `"worker"` or `"evaluator"`.
        count: The number of tasks.
        resources: The resources of each.
    """

    kind: str
    count: int
    resources: Resources


@dataclasses.dataclass(frozen=True)
class DeployedJob:
    """A job to run on a cluster.

    Attributes:
        name: Name of the job, a DNS label: objects and hosts are named after
            it.
        groups: Its tasks: a chief, parameter servers, workers and perhaps an
            evaluator, in this order.
        script: Path of the program that the chief and the evaluator run.
        arguments: Arguments of the program.
        image: Image of the containers; None where there are none.
        namespace: Namespace of Kubernetes; None: that of whoever applies it.
        port: Port of every task; None: one that suits the format.
        checkpoint_claim: Name of the shared volume for checkpoints, or None.
        checkpoint_path: Folder at which tasks see that volume.
        drain_seconds: The time that a worker has after SIGTERM.
        max_restarts: The number of restarts of each task.
        max_job_restarts: The number of restarts of the whole job.
        environment: Further environment variables of every task.
        secrets: Those whose values a Secret of Kubernetes has: the name of the
            variable, of the Secret, and its key there.
        user_id: Numeric user that the containers run as.

    Raises:
        ValueError: If it describes no job that can run. The message names the
            option of `tfps manifest`.
    """

    name: str
    groups: tuple[TaskGroup, ...]
    script: str
    arguments: tuple[str, ...] = ()
    image: str | None = None
    namespace: str | None = None
    port: int | None = None
    checkpoint_claim: str | None = None
    checkpoint_path: str = "/checkpoints"
    drain_seconds: int = 25
    max_restarts: int = 10
    max_job_restarts: int = 0
    environment: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str, str], ...] = ()
    user_id: int = 1000

    def __post_init__(self) -> None:
        _check_label("--name", self.name)
        if not self.name[0].isalpha():
            raise ValueError(
                "--name must begin with a letter, because hosts are named "
                f"after it. Received: --name {self.name}"
            )
        if self.namespace is not None:
            _check_label("--namespace", self.namespace)
        if not self.script:
            raise ValueError("SCRIPT is empty. Expected a path.")
        if not self.checkpoint_path.startswith("/"):
            raise ValueError(
                "--checkpoint-path must be absolute. Received: "
                f"--checkpoint-path {self.checkpoint_path!r}"
            )
        if self.port is not None and not 1024 <= self.port <= 65535:
            raise ValueError(
                "--port must be from 1024 to 65535: tasks do not run as root. "
                f"Received: --port {self.port}"
            )
        seen = set(_OWN_VARIABLES)
        variables = [("--env", name) for name, _ in self.environment]
        variables += [("--secret-env", name) for name, *_ in self.secrets]
        for option, name in variables:
            if not _VARIABLE.fullmatch(name):
                raise ValueError(
                    f"{option} expects NAME=... Received a name that is none: "
                    f"{name!r}"
                )
            if name in seen:
                raise ValueError(
                    f"{option} sets {name}, which is set already. Received: "
                    f"{option} {name}=..."
                )
            seen.add(name)

    @property
    def has_evaluator(self) -> bool:
        """True if an evaluator runs beside the training."""
        return any(group.kind == EVALUATOR for group in self.groups)

    @property
    def grace_seconds(self) -> int:
        """The time between SIGTERM and SIGKILL."""
        return self.drain_seconds + _MARGIN_SECONDS

    def count(self, kind: str) -> int:
        """Returns the number of tasks of a kind."""
        return sum(group.count for group in self.groups if group.kind == kind)

    def tasks(self) -> Iterator[tuple[TaskGroup, int]]:
        """Yields the group and the index of every task."""
        for group in self.groups:
            for index in range(group.count):
                yield group, index

    def command(self, kind: str) -> tuple[str, ...]:
        """Returns the command line of the tasks of a kind."""
        if kind in SERVING:
            return ("tfps", "serve", f"--drain-seconds={self.drain_seconds}")
        return ("python", self.script, *self.arguments)

    def check_host_names(self, *names: str) -> None:
        """Checks that hosts can have these names.

        Args:
            *names: The longest names, made from that of the job.

        Raises:
            ValueError: If one is too long for DNS.
        """
        for name in names:
            if len(name) > _LONGEST_LABEL:
                raise ValueError(
                    f"--name is too long: pods would be called {name}, of "
                    f"{len(name)} characters; expected at most "
                    f"{_LONGEST_LABEL}. Received: --name {self.name}"
                )


def default_name(script: str) -> str:
    """Returns a name for the job that runs a script, by its file.

    Args:
        script: Path of the script.

    Returns:
        A DNS label; "tfps" if the file's name has no letter that fits.
    """
    stem = script.rpartition("/")[2].removesuffix(".py").lower()
    label = re.sub(r"[^a-z0-9]+", "-", stem).strip("-").lstrip("0123456789-")
    return label or "tfps"


def _check_label(option: str, text: str) -> None:
    if not _DNS_LABEL.fullmatch(text) or len(text) > _LONGEST_LABEL:
        raise ValueError(
            f"{option} must be a DNS label: at most {_LONGEST_LABEL} small "
            "letters, digits and hyphens, with a letter or digit at both ends. "
            f"Received: {option} {text!r}"
        )
