"""The exceptions of `errors` that are TensorFlow's of the same meaning, too.

A program that catches `tf.errors.UnavailableError` around `join`, as that of
TensorFlow's own coordinator does, goes on to catch a lost task. They stand
apart because they need TensorFlow: `errors` hands them on when one of them is
first asked for.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin.errors import TfpsError


class _WithoutOperation(Exception):
    """What TensorFlow's exceptions tell, of one that is made of a message.

    Made so, it is pickled, and raised again by AutoGraph, as any exception.
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
    """A task of the running job died."""

    error_code = tf.errors.UNAVAILABLE
    __str__ = Exception.__str__
    __reduce__ = Exception.__reduce__


class WorkerLostError(TaskLostError):
    """No worker is left, or one did not come back before the deadline."""

    retryable = True


class ClosureLosesWorkersError(TaskLostError):
    """Worker after worker was lost while it ran the same closure."""


class ParameterServerLostError(TaskLostError):
    """A parameter server died, and with it the variables it held."""


class ClosureCancelledError(
    TfpsError, RuntimeError, _WithoutOperation, tf.errors.CancelledError
):
    """The closure was cancelled because another one failed, or by the user."""

    error_code = tf.errors.CANCELLED


PUBLIC = (
    TaskLostError,
    WorkerLostError,
    ClosureLosesWorkersError,
    ParameterServerLostError,
    ClosureCancelledError,
)
for _class in PUBLIC:
    # Where users, and pickle, find them.
    _class.__module__ = "tfps_plugin.errors"
