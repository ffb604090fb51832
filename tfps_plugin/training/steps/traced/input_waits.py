"""Seconds that the steps of one call wait for their batches.

A worker takes the next batch while it computes a step, so the time that a batch
takes says nothing: most of it may cost nothing. A step waits for input if the
batch is what comes last. Time stamps of the loop show that, on the worker and
without a message: when each round begins, and when its batch has arrived. In
the last round no batch is taken, so it shows what a step takes by itself.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin.variables.lookup import graph_checks

# A round that begins this soon after the arrival of its batch, compared with
# the time that the batch took, has waited for it.
_SOON = 0.1


class Waits(NamedTuple):
    """Loop variables; all are float64 scalars.

    Attributes:
        begun_at: When the latest round began, in seconds.
        arrived_at: When the batches had arrived that the worker took in it.
        seconds: The waits of the rounds before. Those of `ahead` include a
            step for each round that has waited.
        num_steps: Number of these steps.
    """

    begun_at: tf.Tensor
    arrived_at: tf.Tensor
    seconds: tf.Tensor
    num_steps: tf.Tensor


def now(after: Any) -> tf.Tensor:
    """Returns the time of the worker's clock.

    Args:
        after: A nested structure of tensors, which come before.
    """
    tensors = tf.nest.flatten(after, expand_composites=True)
    with tf.device(graph_checks.CPU), tf.control_dependencies(tensors):
        return tf.timestamp()


def none() -> Waits:
    """Returns the loop variables before the first round."""
    with tf.device(graph_checks.CPU):
        zero = tf.zeros([], tf.float64)
        return Waits(zero, zero, zero, zero)


def after_first(begun_at: tf.Tensor, arrived_at: tf.Tensor) -> Waits:
    """Returns the loop variables of `ahead` before the first round.

    Args:
        begun_at: When the worker began to take the first batch, which the first
            step waits for.
        arrived_at: When that had arrived.
    """
    with tf.device(graph_checks.CPU):
        return Waits(
            # No round has begun that might wait.
            arrived_at,
            arrived_at,
            arrived_at - begun_at,
            tf.zeros([], tf.float64),
        )


def ahead(waits: Waits, begun_at: tf.Tensor) -> Waits:
    """Adds the wait of the latest round, if rounds take the next one's batch.

    Such a round lasts as long as its step or the batch, whichever is longer.

    Args:
        waits: Those of the round before.
        begun_at: When this round began.

    Returns:
        The loop variables with the sums.
    """
    with tf.device(graph_checks.CPU):
        took = waits.arrived_at - waits.begun_at
        is_last = tf.cast(
            begun_at - waits.arrived_at < _SOON * took, tf.float64
        )
        return waits._replace(
            seconds=waits.seconds + is_last * (begun_at - waits.begun_at),
            num_steps=waits.num_steps + is_last,
        )


def total(waits: Waits, ended_at: tf.Tensor) -> tf.Tensor:
    """Returns the sum of the waits, in seconds.

    Args:
        waits: Those after the last round, which has taken no batch.
        ended_at: When that had ended.
    """
    with tf.device(graph_checks.CPU):
        step = ended_at - waits.begun_at
        return tf.maximum(
            waits.seconds - waits.num_steps * step, tf.zeros_like(step)
        )


def at_once(waits: Waits, begun_at: tf.Tensor, steps_of_a_round: int) -> Waits:
    """Adds the wait of the latest round, if it took all batches at its begin.

    If batches come more slowly than steps, the last step begins when the last
    batch has come, and all steps took as many times what is left of the round.
    So the rest of the round is what they waited. If batches come faster, that
    is less than nothing.

    Args:
        waits: Those of the round before.
        begun_at: When this round began.
        steps_of_a_round: Number of steps of a round.

    Returns:
        The loop variables with the sums.
    """
    with tf.device(graph_checks.CPU):
        lasted = begun_at - waits.begun_at
        of_a_step = begun_at - waits.arrived_at
        waited = tf.maximum(
            lasted - steps_of_a_round * of_a_step, tf.zeros_like(lasted)
        )
        # Before the first round, nothing has begun.
        is_one = waits.begun_at > 0
        waited = tf.where(is_one, waited, tf.zeros_like(waited))
        return waits._replace(seconds=waits.seconds + waited)
