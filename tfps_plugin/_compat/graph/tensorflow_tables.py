"""Private TensorFlow API around lookup tables, and captured handles.

TensorFlow has creators of tables, so that a strategy can make its own. There is
no hook when a function of the strategy uses an earlier table, made without the
strategy, nor for the variables of a loaded SavedModel.

Read in TensorFlow 2.20 and 2.21.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import handle_data_util
from tensorflow.python.ops import lookup_ops
from tensorflow.python.trackable import resource

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_saving

# Operations that create a static table, with and without a name.
_CREATORS = frozenset({"HashTableV2", "AnonymousHashTable"})


def owner_of(handle: tf.Tensor) -> Any:
    """Returns the table or variable that a handle belongs to.

    Returns:
        The object that made it; None if it is unknown or gone.
    """
    reference = getattr(handle, "_parent_trackable", None)
    return None if reference is None else reference()


def set_owner(handle: tf.Tensor, owner: Any) -> None:
    """Makes `owner_of` return the owner of a handle, while it exists."""
    handle._parent_trackable = weakref.ref(owner)


def look_up_in_loaded_functions(
    handle: tf.Tensor, variable: tf.Variable
) -> None:
    """Makes functions of a loaded SavedModel look up a variable in each call.

    `tf.saved_model.load` gives each function the handles of its variables. A
    signature passes them on unchanged; a gradient of its results would then
    belong to the handle, and to no variable that an optimizer knows.

    Args:
        handle: The variable's present handle. TensorFlow asks it what
            functions should capture, and accepts a function for each call.
        variable: Its `handle` is the right one at the place of a call. No
            reference to it is kept.
    """
    reference = weakref.ref(variable)
    name = variable.name

    def now() -> tf.Tensor:
        owner = reference()
        if owner is None:
            raise errors.VariableCreationError(
                f"A function of a loaded SavedModel uses the variable {name!r},"
                " which does not exist any more. Keep what "
                "tf.saved_model.load has returned for as long as its functions "
                "are called."
            )
        return owner.handle

    def restore(function: Any, internal: tf.Tensor) -> Any:
        owner = reference()
        if owner is not None:
            # As TensorFlow does with any handle.
            function.graph.replace_capture(owner.own_handle, internal)
            handle_data_util.copy_handle_data(owner.own_handle, internal)
            function.graph.capture(owner.own_handle)
        return now

    handle.__tf_experimental_restore_capture__ = restore


def is_static_table(owner: Any) -> bool:
    """Returns whether it is a static table.

    That is a `tf.lookup.StaticHashTable`, possibly loaded by
    `tf.saved_model.load`.
    """
    return isinstance(owner, lookup_ops.StaticHashTable) or (
        isinstance(owner, resource.RestoredResource)
        and _creator(owner) is not None
    )


def dtypes_of(table: Any) -> tuple[tf.DType, tf.DType]:
    """Returns the dtypes of the keys and of the values of a static table."""
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
    """Returns the operation that creates a loaded static table, or None."""
    for function in getattr(table._create_resource, "concrete_functions", ()):
        for operation in function.graph.get_operations():
            if operation.type in _CREATORS:
                return operation
    return None


def replace_captured_handles(
    original: Callable[..., tf.Tensor],
    replacement: Callable[[tf.Graph, tf.Tensor], tf.Tensor | None],
) -> Callable[..., tf.Tensor]:
    """Returns a `FuncGraph.capture` that replaces existing handles.

    It also replaces variants, such as datasets. All captures of a function pass
    through this method, including those of functions of a loaded SavedModel.

    Args:
        original: TensorFlow's own method.
        replacement: Maps a function's graph, and a handle outside any graph, to
            a tensor of that function or one around it; None keeps TensorFlow's
            behavior. Not called for functions of a SavedModel that is being
            written.
    """

    @functools.wraps(original)
    def capture(
        self: Any, tensor: Any, name: Any = None, shape: Any = None
    ) -> Any:
        if (
            getattr(tensor, "dtype", None) in (tf.resource, tf.variant)
            # An eager tensor of this process or another.
            and hasattr(tensor, "numpy")
            and id(tensor) not in self._function_captures.by_val_internal
            and not tensorflow_saving.is_saving_model()
        ):
            replaced = replacement(self, tensor)
            if replaced is not None:
                tensor = replaced
        return original(self, tensor, name, shape)

    return capture
