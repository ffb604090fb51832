"""Assertions about values that are only known when a function runs."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# The CPU of the task that runs the operation. Ids come out of the input
# pipeline here and leave for the ps from here; and a GPU does not check them.
CPU = "/device:CPU:0"


def gated(value: tf.Tensor, condition: tf.Tensor, data: Sequence[Any]) -> Any:
    """Returns a value that raises an error unless a condition holds.

    Args:
        value: The value.
        condition: A boolean scalar.
        data: The error message: texts, and tensors whose first elements it
            shows.

    Returns:
        The value. It waits for the check, and so does everything that uses it.
    """
    # The assertions of tf.debugging are conditionals, which cost more.
    check = tf.raw_ops.Assert(
        condition=condition, data=[tf.convert_to_tensor(d) for d in data]
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(value)


def require_inside(
    ids_N: tf.Tensor, num_rows: int, path: str, *, from_end: bool = False
) -> tf.Tensor:
    """Returns ids that raise an error unless the table has all of them.

    Args:
        ids_N: Row numbers, shape `(N,)`, of a dtype that can count the rows. N
            may be 0.
        num_rows: Number of rows of the table.
        path: Name of the table, for the message.
        from_end: Whether a negative id counts from the end of the table.

    Returns:
        The ids. They wait for the check, so that no ps is asked before.
    """
    lowest = -num_rows if from_end else 0
    smallest, largest = tf.reduce_min(ids_N), tf.reduce_max(ids_N)
    return gated(
        ids_N,
        (smallest >= lowest) & (largest <= num_rows - 1),
        [
            f"Ids outside of the table {path} were looked up. It has rows 0 "
            f"to {num_rows - 1}"
            + (f", or -{num_rows} to -1 from its end" if from_end else "")
            + ". Received: smallest id =",
            smallest,
            "largest id =",
            largest,
            "Make the table larger (input_dim of an Embedding layer), or map "
            "unknown ids to a row of their own before the lookup.",
        ],
    )


def gated_by_equality(
    value: tf.Tensor, a: tf.Tensor, b: tf.Tensor, text: str
) -> tf.Tensor:
    """Returns a value that raises an error unless two tensors are equal.

    Args:
        value: The value.
        a: A numeric tensor.
        b: One of the same dtype and rank.
        text: The error message, followed by both tensors.

    Returns:
        The value, which waits for the check.
    """
    with tf.device(CPU):
        # False for tensors that cannot be broadcast.
        equal = tf.reduce_all(
            tf.raw_ops.Equal(x=a, y=b, incompatible_shape_error=False)
        ) & tf.equal(tf.size(a), tf.size(b))
    return gated(value, equal, [text, a, "and", b])
