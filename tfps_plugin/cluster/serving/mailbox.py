"""A task's mailbox: a queue that lives on the task, under a fixed name.

The task waits for messages; any process that knows the task's address can post.
Posting uses a session with the TensorFlow server of that task only, so it needs
no other port, no shared file and no other task. It works before a chief has
connected, and after it has lost the connection.
"""

import contextlib
from typing import Any

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_server
from tfps_plugin.cluster.serving import server_session
from tfps_plugin.cluster.spec import Task

NAME = "tfps_plugin_mailbox"
_UNBOUNDED = -1
# A `tf.DType`, as TensorFlow also takes it.
_STRING = "string"


class Mailbox:
    """The receiving end, for the task itself.

    Args:
        target: The session target of the task's own server.
        task: The task.

    Threading: one thread receives.
    """

    def __init__(self, target: str, task: Task) -> None:
        with server_session.graph_on(task) as graph:
            self._message = tensorflow_server.raw_ops.QueueDequeueV2(
                handle=_queue(), component_types=[_STRING]
            )
        self._session = server_session.open_session(target, task, graph)

    def receive(self) -> str:
        """Waits for the next message, for as long as the process lives."""
        (message,) = self._session.run(self._message)
        return bytes(message).decode()


def post(task: Task, text: str, timeout_seconds: float) -> None:
    """Puts a message into a task's mailbox.

    Args:
        task: The task.
        text: The message.
        timeout_seconds: Longest time of each of the few calls that this
            takes.

    Raises:
        TaskUnreachableError: If it cannot be delivered in time. It may have
            arrived nevertheless.

    Threading: safe from several threads.
    """
    with server_session.graph_on(task) as graph:
        enqueue = tensorflow_server.raw_ops.QueueEnqueueV2(
            handle=_queue(), components=[text]
        )
    try:
        session = server_session.open_session(
            f"grpc://{task.address}", task, graph, timeout_seconds
        )
        try:
            session.run(enqueue)
        finally:
            # The message is delivered or not; the task may be gone.
            with contextlib.suppress(tensorflow_server.OpError):
                session.close()
    except tensorflow_server.OpError as error:
        raise errors.TaskUnreachableError(
            f"{task} at {task.address} cannot be told anything: "
            f"{error.message}",
            address=task.address,
            reason=error.message,
        ) from error


def _queue() -> Any:
    return tensorflow_server.raw_ops.FIFOQueueV2(
        component_types=[_STRING],
        shapes=[[]],
        capacity=_UNBOUNDED,
        shared_name=NAME,
    )
