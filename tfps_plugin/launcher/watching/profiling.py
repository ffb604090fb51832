"""Traces of tasks, by the profiler that TensorFlow's servers have."""

import os
import pathlib
from collections.abc import Iterable

from tfps_plugin.monitoring.state.cluster_state import HEALTHY
from tfps_plugin.monitoring.state.cluster_state import ClusterState
from tfps_plugin.monitoring.state.cluster_state import TaskState


def choose(state: ClusterState, names: Iterable[str]) -> list[TaskState]:
    """Returns the tasks that names stand for. Pure.

    Args:
        state: State of the job.
        names: Such as "worker:0".

    Raises:
        ValueError: If there is no such task, or it is not healthy.
    """
    serving = {
        f"{task.job}:{task.index}": task
        for task in (*state.workers, *state.parameter_servers)
    }
    chosen = []
    for name in names:
        task = serving.get(name)
        if task is None:
            raise ValueError(
                f"there is no such task. Expected one of {', '.join(serving)}."
                f" Received: {name}"
            )
        if task.health != HEALTHY:
            raise ValueError(
                f"{task.name} cannot be traced now. Expected a healthy task. "
                f"Received: {name}, which is {task.health}: {task.detail}"
            )
        chosen.append(task)
    return chosen


def trace(
    task: TaskState, seconds: float, directory: pathlib.Path
) -> list[pathlib.Path]:
    """Traces what a task does.

    Args:
        task: The task.
        seconds: How long to trace.
        directory: Folder for the traces.

    Returns:
        The new files.

    Raises:
        OSError: If the task cannot be reached.
    """
    # The trace is of the task; this process only asks for it.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    import tensorflow as tf

    before = set(directory.rglob("*"))
    try:
        tf.profiler.experimental.client.trace(
            f"grpc://{task.address}", str(directory), round(1000 * seconds)
        )
    except RuntimeError as error:
        raise ConnectionError(
            f"{task.name} at {task.address} cannot be traced. Expected an "
            "address that is reachable from here, and a task that computes. "
            f"Received: {error}"
        ) from error
    return sorted(
        path for path in set(directory.rglob("*")) - before if path.is_file()
    )
