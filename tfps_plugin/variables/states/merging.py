"""Puts values of one state together, by a rule that reduces."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.variables.states.merge_rule import MergeRule


def neutral(
    rule: MergeRule, shape: tf.TensorShape, dtype: tf.DType
) -> tf.Tensor:
    """The value that changes nothing where it is combined with another.

    Args:
        rule: One that reduces.
        shape: Of the state.
        dtype: Of the state.
    """
    if rule is MergeRule.SUM:
        return tf.zeros(shape, dtype)
    return tf.fill(
        shape, tf.constant(rule.neutral(np.dtype(dtype.as_numpy_dtype)), dtype)
    )


def combined(rule: MergeRule, first: Any, second: Any) -> tf.Tensor:
    """Two values of a state as one, by a rule that reduces."""
    if first.dtype == tf.bool:
        is_all = rule is MergeRule.MIN
        return (tf.logical_and if is_all else tf.logical_or)(first, second)
    if rule is MergeRule.SUM:
        return tf.add(first, second)
    larger = rule is MergeRule.MAX
    return (tf.maximum if larger else tf.minimum)(first, second)
