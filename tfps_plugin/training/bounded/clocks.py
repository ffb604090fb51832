"""Numbers of steps of all workers, and the rule who may begin another one.

The decisions of a parameter server, as operations of TensorFlow: it makes them
without asking anybody.
"""

from typing import NamedTuple

import tensorflow as tf


class Clocks(NamedTuple):
    """State of all workers on one parameter server; a loop carries it.

    Attributes:
        made: Number of steps that each worker has made, int64.
        waits: Whether each worker waits for leave to begin a step.
        is_here: Whether each worker still takes part.
    """

    made: tf.Tensor
    waits: tf.Tensor
    is_here: tf.Tensor


def begun(shares: tf.Tensor) -> Clocks:
    """Returns the state before the first step.

    Args:
        shares: Number of steps that each worker makes; 0: it is no member.
    """
    is_member = shares > 0
    return Clocks(tf.zeros_like(shares), is_member, is_member)


def running(clocks: Clocks, shares: tf.Tensor) -> tf.Tensor:
    """Returns whether each worker has steps to make, and is here.

    Args:
        clocks: The present state.
        shares: As for `begun`.
    """
    return clocks.is_here & (clocks.made < shares)


def leads(clocks: Clocks, shares: tf.Tensor) -> tf.Tensor:
    """Returns how many steps each worker is ahead of the slowest that runs.

    Args:
        clocks: The present state.
        shares: As for `begun`.

    Returns:
        Numbers that mean something for workers that run.
    """
    made = tf.where(running(clocks, shares), clocks.made, tf.int64.max)
    return clocks.made - tf.reduce_min(made)


def granted(
    clocks: Clocks, shares: tf.Tensor, max_staleness: tf.Tensor
) -> tf.Tensor:
    """Returns whether each worker may begin a step now.

    Args:
        clocks: The present state.
        shares: As for `begun`.
        max_staleness: How many steps ahead of the slowest a worker may begin
            one.
    """
    return (
        clocks.waits
        & running(clocks, shares)
        & (leads(clocks, shares) <= max_staleness)
    )


def after_grant(clocks: Clocks, is_granted: tf.Tensor) -> Clocks:
    """Returns the state after some workers were told to begin a step.

    Args:
        clocks: The present state.
        is_granted: Whether each worker was told.
    """
    return clocks._replace(waits=clocks.waits & ~is_granted)


def after_event(
    clocks: Clocks, worker: tf.Tensor, is_made: tf.Tensor
) -> Clocks:
    """Returns the state after a worker has made a step, or left.

    Args:
        clocks: The present state.
        worker: Index of the worker.
        is_made: Whether it has made a step; else it takes no further part.
    """
    is_it = tf.range(tf.size(clocks.made)) == worker
    return Clocks(
        clocks.made + tf.cast(is_it & is_made, tf.int64),
        clocks.waits | (is_it & is_made),
        clocks.is_here & (~is_it | is_made),
    )
