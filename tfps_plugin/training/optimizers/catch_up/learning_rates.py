"""Learning rates of future steps."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin._compat import keras_optimizers as compat

# Early steps, during which schedules warm up, and late ones.
_SAMPLES = (0, 1, 7, 100, 1_000, 100_000)
# Number of steps that are searched for the largest rate.
_STEPS_LOOKED_AT = 1 << 16


def ahead(optimizer: Any) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """Returns the learning rates of many steps at once.

    Returns:
        A function from a vector of step numbers (float64, the first is 1) to
        their learning rates, float64. None if there is no schedule, or if it
        only takes one step at a time.
    """
    schedule = compat.learning_rate_behind(optimizer)
    if not isinstance(
        schedule, keras.optimizers.schedules.LearningRateSchedule
    ):
        return None
    if not _takes_many(schedule):
        return None

    def rates(steps: tf.Tensor) -> tf.Tensor:
        # A schedule takes the number of steps done before.
        done = tf.cast(steps - 1, tf.int64)
        return tf.cast(schedule(done), tf.float64)

    return rates


def is_scheduled(optimizer: Any) -> bool:
    """Returns whether an optimizer changes its learning rate by itself."""
    # Schedules are callable, too.
    return callable(compat.learning_rate_behind(optimizer))


def largest(optimizer: Any) -> float:
    """Returns the largest learning rate that is known before the first step.

    Args:
        optimizer: A built Keras optimizer.

    Returns:
        For a schedule, the largest rate of many steps; else the present rate.
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
    """Returns whether a schedule accepts many steps at once."""
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
