"""Private TensorFlow API around the eager context's cluster membership.

The public `tf.config.experimental_connect_to_cluster` makes up the address
`localhost` for a chief that the cluster does not list, which workers on other
machines cannot reach. It offers no way to remove or readmit a task.
"""

import copy
from typing import Any

from tensorflow.python.eager import context

from tfps_plugin._compat.runtime import tensorflow_functions


class _Updates:
    """Updates of the process's one eager context."""

    def __init__(self) -> None:
        self.number = 0


_updates = _Updates()


def default_session_config() -> Any:
    """Returns a copy of this process's `ConfigProto`, for the tasks' sessions.

    Used since TensorFlow 2.20: `context.Context.config`.
    """
    return copy.deepcopy(context.context().config)


def set_server_def(server_def: Any) -> None:
    """Connects this process to a cluster, as one of its tasks.

    Starts a server at the address that `server_def` gives this task. Resets
    the eager context: variables that lived on other tasks, and on this one
    before its first connection, are gone.

    Used since TensorFlow 2.20: `context.set_server_def`,
    `context.ensure_initialized`.
    """
    context.set_server_def(server_def)
    context.ensure_initialized()


def update_server_def(server_def: Any) -> None:
    """Changes the members of the cluster; state on remaining tasks stays.

    Keeps this process's own server. Blocks while a listed task does not answer.
    A listed task that was restarted gets a new, empty context. Functions that
    are traced at the same time are registered with the tasks afterwards.

    Used since TensorFlow 2.20: `context.Context.update_server_def`.
    """
    with tensorflow_functions.registered_by_nobody_else():
        # Before and after: a call in between belongs to neither state.
        _updates.number += 1
        try:
            context.context().update_server_def(server_def)
        finally:
            _updates.number += 1


def num_updates() -> int:
    """Returns a number that differs after every `update_server_def`.

    TensorFlow then prepares functions anew.
    """
    return _updates.number
