"""Row lookups and atomic additions of a `keras.Variable`.

Keras reads a whole table to look up some of its rows, and adds to a variable
by reading and assigning it, which loses what another worker adds in between.
Variables of a parameter-server strategy can do better; Keras does not ask.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.variables.kinds.late_bound import LateBoundVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.lookup import row_lookup

_keras_assign_add = keras_compat.Variable.assign_add
_keras_assign_sub = keras_compat.Variable.assign_sub


def install() -> None:
    """Gives `keras.Variable` the methods below."""
    keras_compat.Variable.sparse_read = sparse_read
    keras_compat.Variable.assign_add = assign_add
    keras_compat.Variable.assign_sub = assign_sub


def sparse_read(self: Any, indices: Any, name: str | None = None) -> tf.Tensor:
    """Looks up rows; `tf.gather`, and so `keras.ops.take`, asks for it.

    For a variable that has no such lookup the AttributeError tells
    `tf.gather` to read the whole.
    """
    found = row_lookup.table_behind(self)
    if found is None:
        return self.value.sparse_read(indices, name=name)
    table, of_rows = found
    return of_rows(row_lookup.look_up(table, indices))


def assign_add(self: Any, value: Any) -> Any:
    """Adds atomically, if the variable is one of ours."""
    if not _is_ours(self):
        return _keras_assign_add(self, value)
    self._value.assign_add(_like(self, value))
    return self._value


def assign_sub(self: Any, value: Any) -> Any:
    """Subtracts atomically, if the variable is one of ours."""
    if not _is_ours(self):
        return _keras_assign_sub(self, value)
    self._value.assign_sub(_like(self, value))
    return self._value


def _is_ours(variable: Any) -> bool:
    return not keras_compat.in_stateless_scope() and isinstance(
        variable._value, LateBoundVariable | ShardedVariable
    )


def _like(variable: Any, value: Any) -> tf.Tensor:
    """A value as one operation of the ps takes it: of the variable's shape."""
    value = tf.cast(
        variable._convert_to_tensor(value, dtype=variable.dtype),
        variable._value.dtype,
    )
    if value.shape == variable._value.shape:
        return value
    return tf.broadcast_to(value, variable._value.shape)
