"""Reads of the chief that go on when the cluster changes under them."""

import threading
from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster import runtime_errors
from tfps_plugin.variables.chief import recovery_gate

T = TypeVar("T")

# A change of the cluster's membership takes milliseconds; a read that was on
# its way meanwhile may fail, whatever task it was for.
_PAUSES_SECONDS = (0.05, 0.2, 0.5)


def is_about_the_cluster(error: tf.errors.OpError) -> bool:
    """Whether TensorFlow's error points at a task."""
    return runtime_errors.is_about_the_cluster(type(error).__name__, str(error))


def read(read_once: Callable[[], T]) -> T:
    """Reads, and reads again if the cluster was the reason of an error.

    Args:
        read_once: Reads a value; nothing must depend on how often.

    Returns:
        What it returns.

    Raises:
        tf.errors.OpError: If it is not about the cluster, or does not go
            away within a second, and no ps that was lost is brought back.
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
            has_recovered = recovery_gate.wait()
        except errors.ParameterServerLostError as lost:
            raise lost from error
        if not has_recovered:
            raise
    return read_once()
