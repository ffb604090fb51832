"""The processes of a job on this machine, and how each is started."""

import dataclasses
import sys
from collections.abc import Mapping
from collections.abc import Sequence

from tfps_plugin.cluster.machine import tuning
from tfps_plugin.cluster.machine.ports import LOOPBACK
from tfps_plugin.cluster.spec import CHIEF
from tfps_plugin.cluster.spec import EVALUATOR
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task
from tfps_plugin.cluster.spec import join_address
from tfps_plugin.cluster.tf_config import to_tf_config

# The tasks that run the user's script.
PROGRAMS = frozenset({CHIEF, EVALUATOR})

# The program of a worker or ps.
TASK_SERVER = ("-m", "tfps_plugin.cluster.serving.task_server")


@dataclasses.dataclass(frozen=True)
class ProcessPlan:
    """One process to start.

    Attributes:
        name: What people call the task: "chief", "worker 0".
        arguments: The arguments of the Python interpreter.
        environ: Environment variables to add to those of the job, such as the
            `TF_CONFIG` that tells the process which task it is.
    """

    name: str
    arguments: tuple[str, ...]
    environ: Mapping[str, str]


def num_ports(*, num_workers: int, num_ps: int) -> int:
    """Returns the number of ports of the cluster; the chief has one, too."""
    return 1 + num_workers + num_ps


def plan_cluster(
    ports: Sequence[int], *, num_workers: int, num_ps: int
) -> ClusterSpec:
    """Returns a cluster on this machine's loopback interface.

    Args:
        ports: Free ports, `num_ports` of them.
        num_workers: The number of workers.
        num_ps: The number of parameter servers.
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


def first_tasks(
    cluster: ClusterSpec, numbers: Mapping[str, int]
) -> ClusterSpec:
    """Returns the cluster with fewer tasks.

    Args:
        cluster: The cluster.
        numbers: For each job, the number of its tasks that are left.
    """
    return ClusterSpec.from_dict(
        {
            job: addresses[: numbers.get(job)]
            for job, addresses in cluster.as_dict().items()
        }
    )


def plan_task(
    cluster: ClusterSpec,
    task: Task,
    *,
    logical_cpus: int = 1,
    tune: bool = False,
    environment: Mapping[str, str] | None = None,
) -> ProcessPlan:
    """Returns the process of a worker or ps.

    Args:
        cluster: The cluster that it is to belong to.
        task: The worker or ps.
        logical_cpus: As for `plan_processes`.
        tune: Likewise.
        environment: Likewise.
    """
    return ProcessPlan(
        name=str(task),
        arguments=(
            *TASK_SERVER,
            # No failure: the launcher says nothing of it.
            "--drained-exit-code=0",
            *tuning.task_arguments(cluster, task, tune=tune),
            *([] if logical_cpus == 1 else [f"--logical-cpus={logical_cpus}"]),
        ),
        environ={
            "TF_CONFIG": to_tf_config(cluster, task.job, task.index),
            **tuning.task_variables(environment or {}, tune=tune),
        },
    )


def plan_processes(
    cluster: ClusterSpec,
    script: str,
    script_arguments: Sequence[str],
    *,
    has_evaluator: bool,
    logical_cpus: int = 1,
    tune: bool = False,
    environment: Mapping[str, str] | None = None,
    of_chief: Mapping[str, str] | None = None,
) -> tuple[ProcessPlan, ...]:
    """Returns every process of the job, in the order in which to start them.

    Servers come first: they then import TensorFlow while the script reads its
    data.

    Args:
        cluster: The cluster, with its chief.
        script: The user's program, run by the chief and the evaluator.
        script_arguments: The arguments of the program.
        has_evaluator: Whether an evaluator runs beside the training.
        logical_cpus: Number of CPU devices of each worker.
        tune: Whether to tune the machine for workers and parameter servers.
        environment: The environment of the job; None: an empty one. It decides
            which settings a user has made.
        of_chief: Further environment variables of the chief.
    """
    program = (script, *script_arguments)
    servers = [*cluster.parameter_servers, *cluster.workers]
    programs = [CHIEF, EVALUATOR] if has_evaluator else [CHIEF]
    return (
        *(
            plan_task(
                cluster,
                task,
                logical_cpus=logical_cpus,
                tune=tune,
                environment=environment,
            )
            for task in servers
        ),
        *(
            ProcessPlan(
                name=job,
                arguments=program,
                environ={
                    "TF_CONFIG": to_tf_config(cluster, job, 0),
                    **((of_chief or {}) if job == CHIEF else {}),
                },
            )
            for job in programs
        ),
    )


def command_line(
    plan: ProcessPlan, *, unbuffered: bool, executable: str = sys.executable
) -> list[str]:
    """Returns the command line of a process.

    Args:
        plan: The process.
        unbuffered: Whether Python passes on its output at once. Without a
            terminal it would collect some thousands of characters first, and a
            log would lag minutes behind.
        executable: The Python interpreter.
    """
    switches = ["-u"] if unbuffered else []
    return [executable, *switches, *plan.arguments]
