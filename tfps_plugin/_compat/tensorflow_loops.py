"""Private TensorFlow API: gradients of loops."""

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import default_gradient
from tensorflow.python.ops import handle_data_util

# What the gradient of a variable that is used in a loop starts with.
from tensorflow.python.ops import while_v2

_zeros_like = while_v2._zeros_like


def use_static_shapes_of_variables() -> None:
    """Has gradients of loops believe the shape that a variable's handle tells.

    They ask the variable when they run, and what watches a sharded table has
    no value of the table's shape. TensorFlow's own code asks for this change
    in a TODO; where the shape is known, the result is the same.
    """
    while_v2._zeros_like = _zeros_of_known_shape


def _zeros_of_known_shape(op_input: Any, op_output: Any) -> tf.Tensor:
    if op_output.dtype == tf.resource:
        data = handle_data_util.get_resource_handle_data(op_input)
        if data is not None and data.is_set and len(data.shape_and_type) == 1:
            shape = tf.TensorShape(data.shape_and_type[0].shape)
            if shape.is_fully_defined():
                return tf.zeros(
                    shape, default_gradient.get_zeros_dtype(op_input)
                )
    return _zeros_like(op_input, op_output)
