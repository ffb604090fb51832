"""Reads of the chief that go on when the cluster changes under them."""

import threading
from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster import runtime_errors
from tfps_plugin.cluster.chief import connection
from tfps_plugin.variables.chief.recovery_gate import RecoveryGate

T = TypeVar("T")

# A change of the cluster's membership takes milliseconds; a read in flight may
# fail meanwhile, whatever task it was for.
_PAUSES_SECONDS = (0.05, 0.2, 0.5)


def is_about_the_cluster(error: tf.errors.OpError) -> bool:
    """Returns whether TensorFlow's error points at a task."""
    return runtime_errors.is_about_the_cluster(type(error).__name__, str(error))


def read(read_once: Callable[[], T]) -> T:
    """Reads a value, and reads again if the cluster caused an error.

    Args:
        read_once: Reads the value; it may be called several times.

    Returns:
        The value.

    Raises:
        tf.errors.OpError: If the error is not about the cluster, or lasts
            longer than a second and no lost ps is restored.
        ParameterServerLostError: If a ps is lost for good.
    """
    never = threading.Event()
    for pause_seconds in _PAUSES_SECONDS:
        try:
            return read_once()
        except tf.errors.OpError as error:
            if not is_about_the_cluster(error):
                raise
        never.wait(pause_seconds)
    try:
        return read_once()
    except tf.errors.OpError as error:
        if not is_about_the_cluster(error):
            raise
        try:
            has_recovered = connection.present().part(RecoveryGate).wait()
        except errors.ParameterServerLostError as lost:
            raise lost from error
        if not has_recovered:
            raise
    return read_once()
