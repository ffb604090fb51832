"""Which rows of a table the function being traced has looked up."""

from typing import Any

import tensorflow as tf


def remember(table: Any, ids_U: tf.Tensor, rows_UD: tf.Tensor) -> None:
    """Notes a lookup in the function that is being traced.

    Args:
        table: What was looked up.
        ids_U: Distinct row numbers.
        rows_UD: Their rows.
    """
    if not tf.executing_eagerly():
        graph = tf.compat.v1.get_default_graph()
        graph.add_to_collection(_key(table), (ids_U, rows_UD))


def lookups_of(table: Any) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """The lookups that this function has made so far.

    Args:
        table: What was looked up.

    Returns:
        Distinct row numbers and their rows, for every lookup; nothing outside
        of functions, and nothing of functions inside or around this one.
    """
    if tf.executing_eagerly():
        return []
    return tf.compat.v1.get_default_graph().get_collection(_key(table))


def _key(table: Any) -> str:
    return f"tfps_looked_up/{table._unique_id}"
