"""Learning rates of steps that are still to come."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin._compat import keras_optimizers as compat

# Early steps, in which schedules warm up, and late ones.
_SAMPLES = (0, 1, 7, 100, 1_000, 100_000)
# Steps of which each is looked at for the largest rate.
_STEPS_LOOKED_AT = 1 << 16


def ahead(optimizer: Any) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """Returns the learning rates of many steps at once.

    Args:
        optimizer: A Keras optimizer.

    Returns:
        From numbers of steps (the first is 1, float64, of one axis) to their
        learning rates, float64. None if there is no schedule, or if it takes
        one step at a time: then nobody knows but the optimizer, step by step.
    """
    schedule = compat.learning_rate_behind(optimizer)
    if not isinstance(
        schedule, keras.optimizers.schedules.LearningRateSchedule
    ):
        return None
    if not _takes_many(schedule):
        return None

    def rates(steps: tf.Tensor) -> tf.Tensor:
        # A schedule is asked for the number of steps that were done before.
        done = tf.cast(steps - 1, tf.int64)
        return tf.cast(schedule(done), tf.float64)

    return rates


def is_scheduled(optimizer: Any) -> bool:
    """Returns whether an optimizer has other learning rates by itself."""
    # A schedule is called as well.
    return callable(compat.learning_rate_behind(optimizer))


def largest(optimizer: Any) -> float:
    """Returns the largest learning rate that is known before the first step.

    Args:
        optimizer: A built Keras optimizer.

    Returns:
        Of a schedule, the largest of many steps; otherwise the present one.
    """
    rates = [float(tf.convert_to_tensor(optimizer.learning_rate))]
    schedule = compat.learning_rate_behind(optimizer)
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        ahead_of = ahead(optimizer)
        if ahead_of is None:
            rates += [
                float(schedule(tf.constant(step, tf.int64)))
                for step in _SAMPLES
            ]
        else:
            steps = np.arange(1, _STEPS_LOOKED_AT + 1, dtype=np.float64)
            rates.append(float(tf.reduce_max(ahead_of(tf.constant(steps)))))
    return max(rates)


def _takes_many(schedule: Any) -> bool:
    """Whether a schedule gives for many steps what it gives for each."""
    one_by_one = [
        float(schedule(tf.constant(step, tf.int64))) for step in _SAMPLES
    ]
    try:
        at_once = np.asarray(schedule(tf.constant(_SAMPLES, tf.int64)))
    except (tf.errors.OpError, TypeError, ValueError):
        return False
    return at_once.shape == (len(_SAMPLES),) and np.allclose(
        at_once, one_by_one, rtol=1e-5
    )
