"""Lookups in a vectorized function of one element.

Ids have to be distinct among all elements, so the function itself does not look
up rows. TensorFlow converts its operations to operations on all elements. At
that time all ids are known, and one lookup serves all elements.

Shape legend: N ids of one element, D the rest of a row's shape.
"""

import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_vectorizing


def rows_of_element(
    table: Any,
    ids_N: tf.Tensor,
    number: tf.Tensor,
    look_up: Callable[[Any, tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Returns a stand-in for the rows of one element.

    Args:
        table: The table.
        ids_N: Row numbers, shape `(N,)`.
        number: Number of the element; see `tensorflow_vectorizing.element`.
        look_up: Looks up rows of a table by ids of any shape.

    Returns:
        The rows, shape `(N, D)`, repeated where ids are.
    """
    # The traced function must not keep the table alive.
    of_table, path = weakref.ref(table), table.path

    def of_all(ids: tf.Tensor) -> tf.Tensor:
        table = of_table()
        if table is None:
            raise errors.InternalError(
                "A vectorized function looks up rows of a variable. Expected: "
                f"a variable that exists. Received: variable={path}, which was "
                "deleted. Keep a reference to it."
            )
        return look_up(table, ids)

    def no_gradient() -> Exception:
        return errors.UnsupportedError(
            "A vectorized function computes a gradient of rows of a variable. "
            "These are only looked up for all elements together. Expected: the "
            "gradient of the result of tf.vectorized_map or "
            "keras.ops.vectorized_map. Received: a gradient inside the "
            f"function, variable={path}. Look up the rows outside and pass "
            "them to the function, or use tf.map_fn."
        )

    return tensorflow_vectorizing.stand_in(
        ids_N,
        number,
        tf.TensorSpec([None, *table.shape[1:]], table.dtype),
        of_all,
        table.tape_input,
        no_gradient,
    )
