"""Counts of steps, which wait for the gradients of their step.

A worker that dies before it has sent its gradients has made no step. A constant
could be added at the begin of a step already, and everything that reads one
shares it; an addend that is there only with the gradients cannot.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import keras_optimizers
from tfps_plugin._compat.graph import tensorflow_variables
from tfps_plugin.training.optimizers import sparse_gradients
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.step_trace import StepTrace


def count(optimizer: Any, gradients: Sequence[Any], trace: StepTrace) -> None:
    """Counts an update of an optimizer.

    Args:
        optimizer: The Keras optimizer.
        gradients: The gradients that it applies, see `one_after`.
        trace: The trace of the function that makes the update.
    """
    counter = keras_optimizers.step_counter_of(optimizer)
    counter.assign_add(
        one_after([*gradients, *trace.counts_after], counter.value.dtype)
    )


def one_after(gradients: Sequence[Any], dtype: tf.DType) -> tf.Tensor:
    """Returns a 1 that exists when all gradients of a step do.

    It travels in the message of the gradients, and it is statically known.

    Args:
        gradients: The gradients that the step sends: tensors or
            `tf.IndexedSlices`.
        dtype: Dtype of the count.
    """
    with tensorflow_variables.clear_device(), tf.device(graph_checks.CPU):
        # Made outside: TensorFlow would let the constant alone wait, and a
        # fused step has copies of constants that do not wait.
        one = tf.ones([], dtype)
        values = [sparse_gradients.values_of(each) for each in gradients]
        with tf.control_dependencies(values):
            return tf.identity(one)
