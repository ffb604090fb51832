"""Merges values of one state, by a rule that reduces."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.variables.states.merge_rule import MergeRule


def neutral(
    rule: MergeRule, shape: tf.TensorShape, dtype: tf.DType
) -> tf.Tensor:
    """Returns the value that changes nothing when combined with another.

    Args:
        rule: A rule that reduces.
        shape: Shape of the state.
        dtype: Dtype of the state.
    """
    if rule is MergeRule.SUM:
        return tf.zeros(shape, dtype)
    value = rule.neutral(np.dtype(dtype.as_numpy_dtype))
    # Not a list: see `tensorflow_constants`.
    dims = tf.constant(shape.as_list(), tf.int32)
    return tf.fill(dims, tf.constant(value, dtype))


def combined(rule: MergeRule, first: Any, second: Any) -> tf.Tensor:
    """Combines two values of a state, by a rule that reduces."""
    if first.dtype == tf.bool:
        is_all = rule is MergeRule.MIN
        return (tf.logical_and if is_all else tf.logical_or)(first, second)
    if rule is MergeRule.SUM:
        return tf.add(first, second)
    larger = rule is MergeRule.MAX
    return (tf.maximum if larger else tf.minimum)(first, second)
