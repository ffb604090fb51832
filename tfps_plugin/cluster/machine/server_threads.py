"""How many threads a task's server computes with: its share of the machine.

TensorFlow has as many threads for the inside of operations as the machine has
cores, in each process. Where several workers share a machine, each operation
is then cut into pieces for cores on which the others compute: the pieces wait,
and to hand them over takes longer than the small ones among them.
"""

import dataclasses
import math
import os
import pathlib
from collections.abc import Mapping

from tfps_plugin.cluster import spec

# A function that a worker runs holds one of its threads until it has ended, and
# needs others for what it asks of the parameter servers. TensorFlow gives a
# process one thread per core: two functions at a time then stop a worker with
# two cores for ever.
_LEAST_BETWEEN_OPERATIONS = 16
# What TensorFlow itself reads where a program has not set a number.
_SET_BY_USER = "TF_NUM_INTRAOP_THREADS"
_LEFT_TO_TENSORFLOW = 0
# Of a container: microseconds it may compute in each period, or "max".
_CONTAINER_QUOTA = pathlib.Path("/sys/fs/cgroup/cpu.max")


@dataclasses.dataclass(frozen=True)
class ServerThreads:
    """Threads of one server; 0 leaves the number to TensorFlow.

    Attributes:
        between_operations: How many operations compute at a time
            (`inter_op_parallelism_threads`).
        inside_operations: How many threads an operation may use, all of a
            server's together (`intra_op_parallelism_threads`).
    """

    between_operations: int
    inside_operations: int


def server_threads(
    config: spec.TaskConfig, cores: int, environment: Mapping[str, str]
) -> ServerThreads:
    """Decides the threads of a task that begins to serve.

    Workers of one host share its cores, and so do parameter servers. The two
    jobs do not share with each other, as they mostly wait for each other.

    Args:
        config: Which task of which cluster. Tasks are on one machine if their
            addresses name the same host.
        cores: How many cores this process may use.
        environment: The environment variables. A user's own number in
            `TF_NUM_INTRAOP_THREADS` is kept.

    Returns:
        The numbers.
    """
    neighbours = sum(
        task.job == config.job and task.host == config.task.host
        for task in config.cluster.tasks
    )
    return ServerThreads(
        between_operations=max(_LEAST_BETWEEN_OPERATIONS, 2 * cores),
        inside_operations=(
            _LEFT_TO_TENSORFLOW
            if environment.get(_SET_BY_USER)
            else max(1, cores // neighbours)
        ),
    )


def usable_cores(quota_file: pathlib.Path = _CONTAINER_QUOTA) -> int:
    """How many cores this process may use, at least one.

    Args:
        quota_file: Where Linux says how much its container may compute
            (`cpu.max` of control groups, version 2).

    Returns:
        The cores that it may run on, or fewer if the container has a quota.
        Parts of a core count as one.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        # No container, none with a quota ("max"), or not Linux.
        return cores
