"""Which processes a job on this machine has, and how each is started."""

import dataclasses
import sys
from collections.abc import Sequence

from tfps_plugin.cluster.machine.ports import LOOPBACK
from tfps_plugin.cluster.spec import CHIEF
from tfps_plugin.cluster.spec import EVALUATOR
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import join_address
from tfps_plugin.cluster.tf_config import to_tf_config

# The tasks that run the user's script.
PROGRAMS = frozenset({CHIEF, EVALUATOR})

_TASK_SERVER = ("-m", "tfps_plugin.cluster.serving.task_server")


@dataclasses.dataclass(frozen=True)
class ProcessPlan:
    """One process to start.

    Attributes:
        name: What people call the task: "chief", "worker 0".
        arguments: What the Python interpreter gets.
        tf_config: The `TF_CONFIG` that tells it which task it is.
    """

    name: str
    arguments: tuple[str, ...]
    tf_config: str


def num_ports(*, num_workers: int, num_ps: int) -> int:
    """How many ports the cluster listens on: the chief has one as well."""
    return 1 + num_workers + num_ps


def plan_cluster(
    ports: Sequence[int], *, num_workers: int, num_ps: int
) -> ClusterSpec:
    """The cluster on this machine's loopback interface.

    Args:
        ports: Free ports, `num_ports` of them.
        num_workers: How many workers.
        num_ps: How many parameter servers.
    """
    addresses = [join_address(LOOPBACK, port) for port in ports]
    end_of_workers = 1 + num_workers
    return ClusterSpec.from_dict(
        {
            CHIEF: addresses[:1],
            WORKER: addresses[1:end_of_workers],
            PARAMETER_SERVER: addresses[end_of_workers:][:num_ps],
        }
    )


def plan_processes(
    cluster: ClusterSpec,
    script: str,
    script_arguments: Sequence[str],
    *,
    has_evaluator: bool,
) -> tuple[ProcessPlan, ...]:
    """Every process of the job, in the order in which to start them.

    Servers come first: they are then already importing TensorFlow while the
    script still reads its data.

    Args:
        cluster: Who is in it, the chief included.
        script: The user's program, run by the chief and the evaluator.
        script_arguments: What it gets.
        has_evaluator: Whether there is an evaluator beside the training.
    """
    program = (script, *script_arguments)
    servers = [*cluster.parameter_servers, *cluster.workers]
    programs = [CHIEF, EVALUATOR] if has_evaluator else [CHIEF]
    return (
        *(
            ProcessPlan(
                name=str(task),
                arguments=_TASK_SERVER,
                tf_config=to_tf_config(cluster, task.job, task.index),
            )
            for task in servers
        ),
        *(
            ProcessPlan(
                name=job,
                arguments=program,
                tf_config=to_tf_config(cluster, job, 0),
            )
            for job in programs
        ),
    )


def command_line(
    plan: ProcessPlan, *, unbuffered: bool, executable: str = sys.executable
) -> list[str]:
    """The command line of a process.

    Args:
        plan: The process.
        unbuffered: Whether Python hands on its output at once. Without a
            terminal it would keep it back until some thousands of characters
            are together, and a log would lag minutes behind.
        executable: The Python interpreter.
    """
    switches = ["-u"] if unbuffered else []
    return [executable, *switches, *plan.arguments]
