"""Lookups in a function of one element that is vectorized.

Distinct ids are found among those of all elements, so nothing is looked up in
the function itself: TensorFlow makes its operations anew for all elements, and
then the ids are known, and one lookup serves them all.

Shape legend: N ids of one element, D the rest of a row's shape.
"""

import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_vectorizing


def rows_of_element(
    table: Any,
    ids_N: tf.Tensor,
    number: tf.Tensor,
    look_up: Callable[[Any, tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Stands for the rows of one element.

    Args:
        table: What has the rows.
        ids_N: Row numbers, shape `(N,)`.
        number: Of the element; see `tensorflow_vectorizing.element`.
        look_up: Looks up rows of a table by ids of any shape.

    Returns:
        The rows, shape `(N, D)`, repeated where ids are.
    """
    # The function that is traced does not keep the table.
    of_table, path = weakref.ref(table), table.path

    def of_all(ids: tf.Tensor) -> tf.Tensor:
        table = of_table()
        if table is None:
            raise errors.InternalError(
                f"Rows of a variable were to be looked up in a function that "
                f"is vectorized. Expected: a variable that somebody keeps. "
                f"Received: variable={path}, which is gone. Keep a reference "
                "to it."
            )
        return look_up(table, ids)

    def no_gradient() -> Exception:
        return errors.UnsupportedError(
            "A function that is vectorized asks for its own gradient of rows "
            f"of {path}, which are only looked up for all elements together. "
            "Expected: the gradient of what tf.vectorized_map or "
            "keras.ops.vectorized_map returns. Received: a gradient inside "
            f"of the function, variable={path}. Look the rows up before and "
            "hand them to the function, or use tf.map_fn."
        )

    return tensorflow_vectorizing.stand_in(
        ids_N,
        number,
        tf.TensorSpec([None, *table.shape[1:]], table.dtype),
        of_all,
        table.tape_input,
        no_gradient,
    )
