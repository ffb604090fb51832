"""Description of the cluster for TensorFlow's runtime."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.runtime import tensorflow_cluster
from tfps_plugin.cluster.spec import CHIEF
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.cluster.spec import Task

# Jobs whose devices each task may see, besides its own. Workers see each other
# for functions that a program places on some of them. They connect to each
# other only for these, so a dead one does not affect the rest.
_VISIBLE_JOBS = {
    WORKER: (PARAMETER_SERVER, CHIEF, WORKER),
    PARAMETER_SERVER: (WORKER, CHIEF),
}


# TensorFlow only reads the filters at the first connection: they must include
# tasks that come later, and those of a larger second cluster.
_MIN_FILTERED_TASKS = 256


def most_tasks(number: int) -> int:
    """Returns the largest number of tasks of a job while a chief is connected.

    Args:
        number: Number of tasks at the first connection.
    """
    return max(_MIN_FILTERED_TASKS, 2 * number)


def make_server_def(
    chief_address: str, tasks: Iterable[Task], *, is_first: bool
) -> Any:
    """Returns a `tf.train.ServerDef` of the chief, connected to some tasks.

    Args:
        chief_address: Address at which the chief's own server listens, and at
            which the tasks reach it.
        tasks: The tasks to connect to; other tasks of the cluster do not
            exist for TensorFlow until they are listed.
        is_first: Whether this starts the chief's server; otherwise it changes
            the cluster of the running server.
    """
    session_config = tensorflow_cluster.default_session_config()
    # Threads of functions on the tasks obey this setting, not the tasks' own
    # one (`task_server`), and should wait in the same way.
    session_config.experimental.disable_thread_spinning = True
    server_def = tf.train.ServerDef(
        job_name=CHIEF,
        task_index=0,
        protocol="grpc",
        default_session_config=session_config,
    )
    addresses: dict[str, dict[int, str]] = {CHIEF: {0: chief_address}}
    for task in tasks:
        addresses.setdefault(task.job, {})[task.index] = task.address
    for job, by_index in addresses.items():
        server_def.cluster.job.add(name=job).tasks.update(by_index)
    if is_first:
        for job, visible_jobs in _VISIBLE_JOBS.items():
            filters = server_def.cluster_device_filters.jobs.add(name=job)
            for index in range(most_tasks(len(addresses.get(job, ())))):
                filters.tasks[index].device_filters.extend(
                    f"/job:{visible}" for visible in visible_jobs
                )
    return server_def
