"""Private TensorFlow API: gradients of loops and branches."""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# What the gradient of a branch gives for a variable that it does not use.
from tensorflow.python.ops import cond_v2
from tensorflow.python.ops import default_gradient
from tensorflow.python.ops import handle_data_util

# What the gradient of a variable that is used in a loop starts with.
from tensorflow.python.ops import while_v2

_zeros_like = while_v2._zeros_like
_create_zeros_for_none_grads = cond_v2._create_zeros_for_none_grads


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


def use_no_rows_in_branches() -> None:
    """Has branches that look nothing up give a gradient of no rows.

    Where another branch of a `tf.cond` or `tf.switch_case` has looked up rows
    of a table, TensorFlow makes zeros of the whole table, and then slices of
    all its rows. The sum is the same; but every step that takes the branch
    would send them all, and an update of rows would have touched each.
    """
    cond_v2._create_zeros_for_none_grads = _create_no_rows_for_none_grads


@functools.wraps(_create_zeros_for_none_grads)
def _create_no_rows_for_none_grads(
    forward_graphs: Sequence[Any], grad_graphs: Sequence[Any]
) -> None:
    of_branches = zip(*(g.structured_outputs for g in grad_graphs), strict=True)
    for place, gradients in enumerate(of_branches):
        found = [g for g in gradients if isinstance(g, tf.IndexedSlices)]
        for forward, graph, gradient in zip(
            forward_graphs, grad_graphs, gradients, strict=True
        ):
            if found and gradient is None:
                graph.structured_outputs[place] = _no_rows(
                    found[0], forward.inputs[place], graph
                )
    _create_zeros_for_none_grads(forward_graphs, grad_graphs)


def _no_rows(
    like: tf.IndexedSlices, variable: tf.Tensor, graph: Any
) -> tf.IndexedSlices | None:
    """Slices without rows, in a graph; None: nobody knows the shape."""
    shape, _ = default_gradient.shape_and_dtype(variable)
    if like.dense_shape is None or not shape.is_fully_defined():
        return None
    with graph.as_default():
        return tf.IndexedSlices(
            tf.zeros([0, *shape[1:]], like.dtype),
            tf.zeros([0], like.indices.dtype),
            tf.constant(shape.as_list(), like.dense_shape.dtype),
        )
