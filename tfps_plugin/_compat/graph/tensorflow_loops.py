"""Private TensorFlow API: gradients of loops and branches."""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import default_gradient
from tensorflow.python.ops import handle_data_util


def zeros_of_known_shape(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `while_v2._zeros_like` that uses a handle's static shape.

    Gradients of loops read the variable's shape when they run, but the anchor
    of a sharded table has no value of the table's shape. TensorFlow's own code
    asks for this change in a TODO; if the shape is known, the result is the
    same.
    """

    @functools.wraps(original)
    def zeros_like(op_input: Any, op_output: Any) -> tf.Tensor:
        shape = (
            _shape_behind(op_input) if op_output.dtype == tf.resource else None
        )
        if shape is None:
            return original(op_input, op_output)
        return tf.zeros(shape, default_gradient.get_zeros_dtype(op_input))

    return zeros_like


def _shape_behind(handle: tf.Tensor) -> tf.TensorShape | None:
    """Returns the full static shape of a variable, or None."""
    data = handle_data_util.get_resource_handle_data(handle)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    shape = tf.TensorShape(data.shape_and_type[0].shape)
    return shape if shape.is_fully_defined() else None


def no_rows_for_none_grads(
    original: Callable[..., None],
) -> Callable[..., None]:
    """Returns a `cond_v2._create_zeros_for_none_grads` that makes no rows.

    If another branch of a `tf.cond` or `tf.switch_case` has looked up rows of a
    table, TensorFlow creates zeros of the whole table, and then slices of all
    its rows. The sum is the same, but every step that takes the branch would
    send all rows, and an update of rows would touch each of them.
    """

    @functools.wraps(original)
    def create_no_rows(
        forward_graphs: Sequence[Any], grad_graphs: Sequence[Any]
    ) -> None:
        of_branches = zip(
            *(g.structured_outputs for g in grad_graphs), strict=True
        )
        for place, gradients in enumerate(of_branches):
            found = [g for g in gradients if isinstance(g, tf.IndexedSlices)]
            for forward, graph, gradient in zip(
                forward_graphs, grad_graphs, gradients, strict=True
            ):
                if found and gradient is None:
                    graph.structured_outputs[place] = _no_rows(
                        found[0], forward.inputs[place], graph
                    )
        original(forward_graphs, grad_graphs)

    return create_no_rows


def _no_rows(
    like: tf.IndexedSlices, variable: tf.Tensor, graph: Any
) -> tf.IndexedSlices | None:
    """Returns slices without rows, in a graph; None: unknown shape."""
    shape, _ = default_gradient.shape_and_dtype(variable)
    if like.dense_shape is None or not shape.is_fully_defined():
        return None
    with graph.as_default():
        return tf.IndexedSlices(
            tf.zeros([0, *shape[1:]], like.dtype),
            tf.zeros([0], like.indices.dtype),
            tf.constant(shape.as_list(), like.dense_shape.dtype),
        )
