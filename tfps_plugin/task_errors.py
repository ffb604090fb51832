"""Exceptions of `errors` that derive from TensorFlow's of the same meaning.

A program that catches `tf.errors.UnavailableError` around `join`, as with
TensorFlow's own coordinator, also catches the loss of a task here. They have a
module of their own because they need TensorFlow; `errors` loads them on first
use.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin.errors import TfpsError


class _WithoutOperation(Exception):
    """Attributes of TensorFlow's exceptions, for one made of a message alone.

    With them it can be pickled, and raised again by AutoGraph, like any other
    exception.
    """

    op = None
    node_def = None
    error_code: int | None = None
    experimental_payloads: dict[str, Any] = {}  # noqa: RUF012

    __str__ = Exception.__str__
    __reduce__ = Exception.__reduce__

    @property
    def message(self) -> str:
        """The text of the exception."""
        return str(self)


class TaskLostError(
    TfpsError, ConnectionError, _WithoutOperation, tf.errors.UnavailableError
):
    """A task of the running job was lost."""

    error_code = tf.errors.UNAVAILABLE
    __str__ = Exception.__str__
    __reduce__ = Exception.__reduce__


class WorkerLostError(TaskLostError):
    """No worker is left, or one did not come back before the deadline."""

    retryable = True


class ClosureLosesWorkersError(TaskLostError):
    """Several workers in a row were lost while they ran the same closure."""


class ParameterServerLostError(TaskLostError):
    """A parameter server was lost, and with it the variables that it held."""


class ClosureCancelledError(
    TfpsError, RuntimeError, _WithoutOperation, tf.errors.CancelledError
):
    """The closure was cancelled by the user, or because another one failed.

    A closure that is bound to a worker is also cancelled with that worker.
    """

    error_code = tf.errors.CANCELLED


PUBLIC = (
    TaskLostError,
    WorkerLostError,
    ClosureLosesWorkersError,
    ParameterServerLostError,
    ClosureCancelledError,
)
for _class in PUBLIC:
    # The module in which users and pickle find them.
    _class.__module__ = "tfps_plugin.errors"
