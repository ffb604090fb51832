"""Sizes of the thread pools of a task's server.

They are options of TensorFlow's server and change nothing on the machine, so
they are not part of tuning it (`tuning.py`). The number of inter-op threads
prevents deadlock. The number of intra-op threads is the server's share of the
machine: TensorFlow by default takes a thread for each core in each process.
Where several workers share a machine, it then cuts each operation into pieces
for cores on which the others compute, and small pieces take longer to hand over
than to compute.
"""

import dataclasses
from collections.abc import Mapping

from tfps_plugin.cluster import spec

# A function that a worker runs holds one inter-op thread until it ends, and
# needs others for what it asks of the parameter servers. TensorFlow gives a
# process one thread for each core: on two cores, two functions at a time then
# block a worker forever.
_LEAST_INTER_OP = 16
# TensorFlow reads it where a program has not set a number.
_SET_BY_USER = "TF_NUM_INTRAOP_THREADS"
_LEFT_TO_TENSORFLOW = 0


@dataclasses.dataclass(frozen=True)
class ServerThreads:
    """Numbers of threads of one server; 0 leaves the number to TensorFlow.

    Attributes:
        inter_op: The number of operations that run at a time
            (`inter_op_parallelism_threads`).
        intra_op: The number of threads that all operations of the server
            together use inside (`intra_op_parallelism_threads`).
    """

    inter_op: int
    intra_op: int


def server_threads(
    config: spec.TaskConfig, cores: int, environment: Mapping[str, str]
) -> ServerThreads:
    """Returns the numbers of threads of a task that begins to serve.

    Workers of one host share its cores, and so do parameter servers. The two
    jobs do not share with each other, as they mostly wait for each other.

    Args:
        config: The task and its cluster. Tasks are on one machine if their
            addresses name the same host.
        cores: The number of cores that this process may use.
        environment: The environment variables. `TF_NUM_INTRAOP_THREADS` of a
            user wins.
    """
    neighbors = sum(
        task.job == config.job and task.host == config.task.host
        for task in config.cluster.tasks
    )
    return ServerThreads(
        inter_op=max(_LEAST_INTER_OP, 2 * cores),
        intra_op=(
            _LEFT_TO_TENSORFLOW
            if environment.get(_SET_BY_USER)
            else max(1, cores // neighbors)
        ),
    )
