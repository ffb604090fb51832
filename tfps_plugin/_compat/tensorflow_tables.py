"""Private TensorFlow API around lookup tables, and captured handles.

TensorFlow asks who is to make a table, so that a strategy can make its own.
Nothing asks when a table that was made before, without the strategy, is used
in a function of the strategy, nor for the variables of a loaded SavedModel.

Read in TensorFlow 2.20 and 2.21.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import lookup_ops
from tensorflow.python.trackable import resource

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_saving

# What makes a static table, under a name and without one.
_CREATORS = frozenset({"HashTableV2", "AnonymousHashTable"})


def owner_of(handle: tf.Tensor) -> Any:
    """The table or variable that a handle belongs to.

    Args:
        handle: A tensor of resource dtype.

    Returns:
        The object that made it; None if it does not say, or is gone.
    """
    reference = getattr(handle, "_parent_trackable", None)
    return None if reference is None else reference()


def set_owner(handle: tf.Tensor, owner: Any) -> None:
    """Has `owner_of` the handle give the owner, for as long as it exists."""
    handle._parent_trackable = weakref.ref(owner)


def is_static_table(owner: Any) -> bool:
    """Whether it is a static table.

    That is a `tf.lookup.StaticHashTable`, or what `tf.saved_model.load` makes
    of one.
    """
    return isinstance(owner, lookup_ops.StaticHashTable) or (
        isinstance(owner, resource.RestoredResource)
        and _creator(owner) is not None
    )


def dtypes_of(table: Any) -> tuple[tf.DType, tf.DType]:
    """Dtypes of the keys and of the values of a static table."""
    if isinstance(table, lookup_ops.StaticHashTable):
        return table.key_dtype, table.value_dtype
    creator = _creator(table)
    if creator is None:
        raise errors.InternalError(
            f"Expected a static lookup table. Received: table={table!r}. "
            "Please report this."
        )
    return creator.get_attr("key_dtype"), creator.get_attr("value_dtype")


def _creator(table: resource.RestoredResource) -> tf.Operation | None:
    """What makes a table that was loaded, if it is a static one."""
    for function in getattr(table._create_resource, "concrete_functions", ()):
        for operation in function.graph.get_operations():
            if operation.type in _CREATORS:
                return operation
    return None


def replace_captured_handles(
    replacement: Callable[[tf.Graph, tf.Tensor], tf.Tensor | None],
) -> None:
    """Says what functions capture in the place of handles that exist already.

    And of variants, such as datasets. All that a function uses pass through
    one method, those that the functions of a loaded SavedModel have captured,
    too.

    Args:
        replacement: From a function's graph and a handle that is not of any
            graph, to a tensor of a function around it or itself; or to None,
            where TensorFlow shall do as it does. Not called for functions of
            a SavedModel that is being written.
    """
    original = FuncGraph.capture

    @functools.wraps(original)
    def capture(
        self: Any, tensor: Any, name: Any = None, shape: Any = None
    ) -> Any:
        if (
            getattr(tensor, "dtype", None) in (tf.resource, tf.variant)
            # Of this process or another, and of no graph.
            and hasattr(tensor, "numpy")
            and id(tensor) not in self._function_captures.by_val_internal
            and not tensorflow_saving.is_saving_model()
        ):
            replaced = replacement(self, tensor)
            if replaced is not None:
                tensor = replaced
        return original(self, tensor, name, shape)

    FuncGraph.capture = capture
