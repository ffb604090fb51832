"""Tasks that a function names by `tf.device`. Pure: no TensorFlow."""

import re
from collections.abc import Iterable
from collections.abc import Sequence

from tfps_plugin import errors
from tfps_plugin.cluster.spec import CHIEF
from tfps_plugin.cluster.spec import OLD_NAME_OF_CHIEF
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.cluster.spec import Task

_PART = re.compile(r"/(job|replica|task):([^/]+)")


def workers_of(
    devices: Iterable[str], tasks: Sequence[Task], name: str
) -> frozenset[int]:
    """Returns the workers on which a function places operations.

    Args:
        devices: Devices of the operations of a function that workers run.
        tasks: The tasks that belong to the cluster, by job and index.
        name: Name of the function, for messages.

    Returns:
        Their indices. Operations without a task run on any worker.

    Raises:
        PlacementError: If the cluster has no such task.
    """
    workers = set()
    for device in devices:
        parts = dict(_PART.findall(device))
        if not {"job", "task"} & parts.keys():
            continue
        reason = _why_unknown(parts, tasks)
        if reason is not None:
            raise errors.PlacementError(
                f"The function {name!r} places operations on a device that "
                f"the cluster does not have: {reason}. Expected a task of the "
                f"cluster: {_listed(tasks)}. Received: "
                f"tf.device({device!r}). Name one of these tasks, or leave "
                "the device out: operations then run on the worker that runs "
                "the function."
            )
        if parts["job"] == WORKER:
            workers.add(int(parts["task"]))
    return frozenset(workers)


def _why_unknown(parts: dict[str, str], tasks: Sequence[Task]) -> str | None:
    """Returns why the cluster has no such task; None: it has one."""
    job, task = parts.get("job"), parts.get("task")
    if job is None:
        return f"task {task} is of no job"
    if job == OLD_NAME_OF_CHIEF:
        # TensorFlow has no such device, whatever TF_CONFIG calls the chief.
        return f"{job!r} is an old name of the chief, whose job is {CHIEF!r}"
    indices = [each.index for each in tasks if each.job == job]
    if not indices:
        return f"there is no job {job!r}"
    if task is None:
        # TensorFlow reads it as task 0 of parameter servers, of which a
        # function may name any.
        return "it names no worker" if job == WORKER else None
    if int(task) not in indices:
        return f"there is no {job} {task}"
    if parts.get("replica", "0") != "0":
        return f"tasks have no replica {parts['replica']}"
    return None


def _listed(tasks: Sequence[Task]) -> str:
    """Returns text such as `'/job:ps/task:0'`, with all tasks."""
    found = []
    for job in (CHIEF, WORKER, PARAMETER_SERVER):
        names = [
            f"'/job:{job}/task:{each.index}'"
            for each in tasks
            if each.job == job
        ]
        if not names:
            continue
        indices = [each.index for each in tasks if each.job == job]
        is_range = indices[-1] - indices[0] + 1 == len(indices) > 1
        found.append(
            f"{names[0]} to {names[-1]}" if is_range else ", ".join(names)
        )
    return ", ".join(found)
