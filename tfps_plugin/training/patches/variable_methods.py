"""Row lookups and atomic additions of a `keras.Variable`.

Keras reads a whole table to look up some of its rows. It adds to a variable by
reading and assigning it, which loses additions of other workers in between.
Variables of a parameter-server strategy can do better, but Keras does not use
their methods.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.variables.kinds.late_bound import LateBoundVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.lookup.table import table_behind


def sparse_read(_: None) -> Callable[..., tf.Tensor]:
    """Returns a method that looks up rows.

    `tf.gather`, and so `keras.ops.take`, uses it. For a variable without such a
    lookup the AttributeError makes `tf.gather` read the whole variable.
    """

    def read(self: Any, indices: Any, name: str | None = None) -> tf.Tensor:
        found = table_behind(self)
        if found is None:
            return self.value.sparse_read(indices, name=name)
        table, of_rows = found
        return of_rows(row_lookup.look_up(table, indices))

    return read


def updating_atomically(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an `assign_add` or `assign_sub` that is one operation of the ps.

    Args:
        original: Keras's own method, which other variables keep.
    """
    name = original.__name__

    @functools.wraps(original)
    def update(self: Any, value: Any) -> Any:
        ours = keras_compat.value_of(self)
        if keras_compat.in_stateless_scope() or not isinstance(
            ours, LateBoundVariable | ShardedVariable
        ):
            return original(self, value)
        value = tf.cast(
            keras_compat.converted_for(self, value, self.dtype), ours.dtype
        )
        if value.shape != ours.shape:
            value = tf.broadcast_to(value, ours.shape)
        getattr(ours, name)(value)
        return ours

    return update
