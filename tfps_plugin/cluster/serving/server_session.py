"""Sessions with the TensorFlow server of a single task."""

import contextlib
from collections.abc import Iterator
from typing import Any

from tfps_plugin._compat.runtime import tensorflow_server
from tfps_plugin.cluster.spec import Task


@contextlib.contextmanager
def graph_on(task: Task) -> Iterator[Any]:
    """Yields a graph whose operations run on a task."""
    with (
        tensorflow_server.Graph().as_default() as graph,
        tensorflow_server.device(f"{task.name}/device:CPU:0"),
    ):
        yield graph


def open_session(
    target: str, task: Task, graph: Any, timeout_seconds: float | None = None
) -> Any:
    """Opens a session with a task alone.

    Args:
        target: Session target of the task's server.
        task: The task.
        graph: The graph that it runs; see `graph_on`.
        timeout_seconds: Longest time of each of its calls; None: no limit.
    """
    config = tensorflow_server.ConfigProto(
        # Without it the task would first wait for the rest of its cluster.
        device_filters=[task.name],
    )
    if timeout_seconds is not None:
        config.operation_timeout_in_ms = max(1, int(timeout_seconds * 1000))
    return tensorflow_server.Session(target, graph=graph, config=config)
