"""Private TensorFlow API: SavedModels and checkpoints.

While TensorFlow makes a SavedModel it traces functions again, in a *save
context*. Its own distributed variables show themselves there as one plain
variable. Nothing public tells that one is in that context.

Read in TensorFlow 2.20 and 2.21.
"""

import contextlib
import functools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import tensor_callable
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.saved_model import save_context

# Name of a variable's value among the tensors that a checkpoint asks for.
from tensorflow.python.trackable.base import (
    VARIABLE_VALUE_KEY as VARIABLE_VALUE_KEY,
)


def deferred_read(
    read: Callable[[], tf.Tensor], dtype: tf.DType, device: str
) -> Any:
    """A tensor that a checkpoint reads when it is written, and not before.

    Args:
        read: Reads it.
        dtype: Dtype of the tensor.
        device: Where it is; that task writes it to the checkpoint.
    """
    return tensor_callable.Callable(read, dtype, device)


def make_for_slices(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a `TrackableSaveable.__init__` that reads a variable's slices.

    TensorFlow lets `_serialize_to_tensors` answer with a dictionary of slices,
    and reads them all, but hands only the first to `_restore_from_tensors`.
    Its own sharded variables use an older protocol, which a variable inside
    of a `keras.Variable` is not asked for.

    A variable with a method `slices_to_restore`, which answers likewise, has
    those read instead of the slices that it writes.
    """

    @functools.wraps(original)
    def make(
        self: Any, obj: Any, specs: Any, *args: Any, **kwargs: Any
    ) -> None:
        value = getattr(obj, "_value", obj)
        slices: dict[str, Any] = getattr(value, "slices_to_restore", dict)()
        if slices:
            name = specs[0].name
            specs = list(slices.values())
            for slice_spec, spec in slices.items():
                spec.name, spec.slice_spec = name, slice_spec
        original(self, obj, specs, *args, **kwargs)

    return make


def restore_slices(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `TrackableSaveable.restore` that hands on all slices."""

    @functools.wraps(original)
    def restore_all(
        self: Any, restored_tensors: Any, restored_shapes: Any
    ) -> Any:
        if not any(spec.slice_spec for spec in self.specs):
            return original(self, restored_tensors, restored_shapes)
        (local_name,) = self._local_names
        slices = {
            spec.slice_spec: tensor
            for spec, tensor in zip(self.specs, restored_tensors, strict=True)
        }
        self._trackable._restore_from_tensors({local_name: slices})
        return tf.no_op()

    return restore_all


def is_saving_model() -> bool:
    """Returns whether this thread traces functions for a SavedModel."""
    return save_context.in_save_context()


def in_saved_graph() -> bool:
    """Returns whether the graph of a SavedModel itself is being made.

    Its functions have graphs of their own.
    """
    return (
        is_saving_model()
        and not tf.executing_eagerly()
        and not tf.inside_function()
    )


@contextlib.contextmanager
def saving_model() -> Iterator[None]:
    """Has functions traced as for a SavedModel, if they are not already.

    What was traced otherwise is traced again: TensorFlow remembers functions
    together with the options of the save context.
    """
    if save_context.in_save_context():
        yield
        return
    with save_context.save_context(tf.saved_model.SaveOptions()):
        yield


def traced_again(
    original: Callable[..., Any], is_for_workers: Callable[[], bool]
) -> Callable[..., Any]:
    """Returns a `get_concrete_function` whose results SavedModels trace anew.

    TensorFlow traces a `tf.function` again when a SavedModel is made of it. A
    concrete function knows no Python any more: given as a signature, it would
    be written as it was traced for the cluster.

    Used since TensorFlow 2.20: `ConcreteFunction._call_impl`, through which a
    signature is called while it is written.

    Args:
        original: TensorFlow's own.
        is_for_workers: Whether this thread traces what workers run. These are
            signatures of nothing, and left as they are.
    """

    @functools.wraps(original)
    def get_concrete_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        concrete = original(self, *args, **kwargs)
        if (
            concrete.graph.function_captures.by_ref_internal
            and not is_saving_model()
            and not is_for_workers()
            and all(map(_is_of_no_value, tf.nest.flatten((args, kwargs))))
        ):
            call = concrete._call_impl

            def call_impl(args_: Any, kwargs_: Any) -> Any:
                if not is_saving_model():
                    return call(args_, kwargs_)
                again = original(self, *args, **kwargs)
                return again._call_impl(args_, kwargs_)

            concrete._call_impl = call_impl
        return concrete

    return get_concrete_function


def _is_of_no_value(argument: Any) -> bool:
    """Returns whether an argument says what is traced, and holds no memory."""
    kinds = (tf.TypeSpec, str, bool, int, float)
    return argument is None or isinstance(argument, kinds)


def uninitialized_variable(
    shape: tf.TensorShape, dtype: tf.DType, name: str, **options: Any
) -> tf.Variable:
    """A plain variable of this process that never gets a value.

    It takes no memory. Public variables are made with a value.

    Args:
        shape: Full static shape.
        dtype: Dtype of the elements.
        name: Name shown to the user.
        **options: `trainable`, `synchronization` and `aggregation`, as in
            `tf.Variable`.
    """
    with tf.init_scope(), tf.device("/device:CPU:0"):
        # Not the call of the class: a strategy would make the variable.
        variable = object.__new__(resource_variable_ops.UninitializedVariable)
        variable.__init__(shape=shape, dtype=dtype, name=name, **options)
    return variable


def copy_into_graph(variable: Any) -> tf.Variable:
    """Returns the variable's copy in the graph of the SavedModel."""
    return resource_variable_ops.copy_to_graph_uninitialized(variable)


def describe_variable(variable: Any, proto: Any, options: Any) -> None:
    """Writes what a SavedModel has to know to make a variable again.

    Args:
        variable: Has name, shape, dtype and the rest of a `tf.Variable`.
        proto: The `SavedObject` to fill.
        options: The `tf.saved_model.SaveOptions`.
    """
    resource_variable_ops.write_object_proto_for_resource_variable(
        variable, proto, options, enforce_naming=False
    )
