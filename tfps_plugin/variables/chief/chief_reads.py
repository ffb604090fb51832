"""Reads of the chief that go on when the cluster changes under them."""

import threading
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.cluster import runtime_errors
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.chief import connection
from tfps_plugin.variables.chief import worker_fetches
from tfps_plugin.variables.chief.recovery_gate import RecoveryGate

T = TypeVar("T")

# A change of the cluster's membership takes milliseconds; a read in flight may
# fail meanwhile, whatever task it was for.
_PAUSES_SECONDS = (0.05, 0.2, 0.5)


def on_the_chief() -> bool:
    """Returns whether this thread runs operations eagerly, on the chief."""
    return tf.executing_eagerly() and dispatch_context.current() is None


def is_about_the_cluster(error: BaseException) -> bool:
    """Returns whether an error is TensorFlow's and points at a task."""
    return isinstance(
        error, tf.errors.OpError
    ) and runtime_errors.is_about_the_cluster(type(error).__name__, str(error))


def to_array(tensor: tf.Tensor) -> np.ndarray:
    """Fetches a tensor, again if the cluster changes meanwhile.

    Args:
        tensor: A tensor of any task.

    Returns:
        Its value.

    Raises:
        tf.errors.OpError: See `read`.
        ParameterServerLostError: See `read`.
    """
    value: np.ndarray = to_arrays([tensor])[0]
    return value


def to_arrays(tensors: Sequence[tf.Tensor]) -> list[Any]:
    """Fetches tensors at once; see `to_array`.

    Args:
        tensors: Tensors of any task.

    Returns:
        Their values.

    Raises:
        tf.errors.OpError: See `read`.
        ParameterServerLostError: See `read`.
    """

    def read_once() -> list[Any]:
        return [
            require_shape(value, tensor.shape)
            for value, tensor in zip(
                worker_fetches.arrays(tensors), tensors, strict=True
            )
        ]

    return read(read_once)


def require_shape(value: T, shape: Any) -> T:
    """Returns a value, if it is one.

    While the cluster changes, TensorFlow may return an empty vector in place
    of the value, and no error.

    Args:
        value: A tensor or an array.
        shape: The shape that it has to have.

    Raises:
        UnavailableError: If it is an empty vector, and should not be.
    """
    # A string is an object of Python, without a shape.
    found = tf.TensorShape(getattr(value, "shape", ()))
    if found != [0] or found.is_compatible_with(shape):
        return value
    raise tf.errors.UnavailableError(
        None,
        None,
        "TensorFlow has returned an empty tensor while a task was lost. "
        f"Expected shape {shape}. Received: shape={found}.",
    )


def read(read_once: Callable[[], T]) -> T:
    """Reads a value, and reads again if the cluster caused an error.

    Args:
        read_once: Reads the value; it may be called several times.

    Returns:
        The value.

    Raises:
        tf.errors.OpError: If the error is not about the cluster, or lasts
            longer than a second and than the recovery of lost ps.
        ParameterServerLostError: If a ps is lost for good.
    """
    never = threading.Event()
    for pause_seconds in _PAUSES_SECONDS:
        try:
            return _attempt(read_once)
        except tf.errors.OpError as error:
            if not is_about_the_cluster(error):
                raise
        never.wait(pause_seconds)
    try:
        return _attempt(read_once)
    except tf.errors.OpError as error:
        if not is_about_the_cluster(error):
            raise
        try:
            connection.present().part(RecoveryGate).wait()
        except errors.ParameterServerLostError as lost:
            raise lost from error
    # Also if nothing is lost now: a ps may have recovered a moment ago.
    return _attempt(read_once)


def _attempt(read_once: Callable[[], T]) -> T:
    """Reads once; no error is left for what the thread does next.

    TensorFlow reports the failure of a remote call to whatever uses the same
    executor afterwards, such as the next batch of a dataset, and again and
    again. This does not wait for calls whose results nobody has fetched yet:
    who fetches them learns of a failure, with its own text.
    """
    executor = tensorflow_execution.new_synchronous_executor()
    with tensorflow_execution.executor_scope(executor):
        return read_once()
