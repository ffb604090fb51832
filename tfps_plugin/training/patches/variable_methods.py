"""Methods of a `keras.Variable` whose value is on parameter servers.

Keras reads a whole table to look up some of its rows, and makes one tensor of
a value to assign it. It adds to a variable by reading and assigning it, which
loses additions of other workers in between. Variables of a parameter-server
strategy can do better, but Keras does not use their methods.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.training.saving import table_rows
from tfps_plugin.variables.kinds.late_bound import LateBoundVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.lookup.table import looked_up_table


class VariableOnPs(keras.Variable):
    """A `keras.Variable` whose value is a variable of ours."""

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Looks up rows; `tf.gather`, and so `keras.ops.take`, calls this.

        For a variable without such a lookup the AttributeError makes
        `tf.gather` read the whole variable.
        """
        found = looked_up_table(self)
        if found is None:
            return self.value.sparse_read(indices, name=name)
        table, of_rows = found
        return of_rows(row_lookup.look_up(table, indices))

    def assign(self, value: Any) -> Any:
        """Assigns a value; a large one block by block."""
        if table_rows.assign_in_blocks(self, value):
            return keras_compat.value_of(self)
        return super().assign(value)

    def assign_add(self, value: Any) -> Any:
        """Adds a value in one operation of the ps."""
        if keras_compat.in_stateless_scope():
            return super().assign_add(value)
        return self._update_atomically("assign_add", value)

    def assign_sub(self, value: Any) -> Any:
        """Subtracts a value in one operation of the ps."""
        if keras_compat.in_stateless_scope():
            return super().assign_sub(value)
        return self._update_atomically("assign_sub", value)

    def _update_atomically(self, method: str, value: Any) -> Any:
        ours = keras_compat.value_of(self)
        value = tf.cast(
            keras_compat.converted_for(self, value, self.dtype), ours.dtype
        )
        if value.shape != ours.shape:
            value = tf.broadcast_to(value, ours.shape)
        getattr(ours, method)(value)
        return ours

    # For TensorFlow's savers, which get the value itself. Keras would create
    # a second variable: for a table, one of its size on the chief; in a
    # SavedModel, one that no function reads.

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        value = keras_compat.value_of(self)
        value._copy_trackable_to_cpu(object_map)
        object_map[self] = object_map[value]

    def _export_to_saved_model_graph(
        self, object_map: Any, *args: Any, **kwargs: Any
    ) -> Any:
        value = keras_compat.value_of(self)
        handles = value._export_to_saved_model_graph(
            object_map, *args, **kwargs
        )
        object_map[self] = object_map[value]
        return handles


def on_ps(original: Callable[..., None]) -> Callable[..., None]:
    """Returns an `_initialize` that gives our variables their own class."""

    @functools.wraps(original)
    def initialize(self: Any, value: Any) -> None:
        original(self, value)
        if isinstance(
            keras_compat.value_of(self), LateBoundVariable | ShardedVariable
        ):
            self.__class__ = _class_on_ps(self.__class__)

    return initialize


@functools.cache
def _class_on_ps(kind: type) -> type:
    """Returns the class of a variable that was created with another class."""
    if issubclass(kind, VariableOnPs):
        return kind
    if issubclass(VariableOnPs, kind):
        return VariableOnPs
    # A user's own methods come first.
    return type(kind.__name__, (kind, VariableOnPs), {})
