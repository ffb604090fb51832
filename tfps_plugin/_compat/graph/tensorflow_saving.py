"""Private TensorFlow API: SavedModels and checkpoints.

While TensorFlow writes a SavedModel it retraces functions, in a *save context*.
Its own distributed variables act as one plain variable there. No public API
detects that context.

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

# Name of a variable's value among its tensors in a checkpoint.
from tensorflow.python.trackable.base import (
    VARIABLE_VALUE_KEY as VARIABLE_VALUE_KEY,
)


def deferred_read(
    read: Callable[[], tf.Tensor], dtype: tf.DType, device: str
) -> Any:
    """Returns a tensor that is only read when the checkpoint is written.

    Args:
        read: Reads the tensor.
        dtype: Dtype of the tensor.
        device: Its device; that task writes it to the checkpoint.
    """
    return tensor_callable.Callable(read, dtype, device)


def make_for_slices(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a `TrackableSaveable.__init__` that restores a variable's slices.

    TensorFlow allows `_serialize_to_tensors` to return a dictionary of slices,
    and reads them all, but passes only the first to `_restore_from_tensors`.
    Its own sharded variables use an older protocol, which does not reach a
    variable inside a `keras.Variable`.

    If a variable has a method `slices_to_restore`, which returns the same kind
    of dictionary, those slices are read instead of the written ones, and
    `_restore_from_tensors` receives each by its own name.
    """

    @functools.wraps(original)
    def make(
        self: Any,
        obj: Any,
        specs: Any,
        name: Any,
        local_names: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        value = getattr(obj, "_value", obj)
        slices: dict[str, Any] = getattr(value, "slices_to_restore", dict)()
        if slices:
            spec_name = specs[0].name
            specs, local_names = list(slices.values()), list(slices)
            for slice_spec, spec in slices.items():
                spec.name, spec.slice_spec = spec_name, slice_spec
        original(self, obj, specs, name, local_names, *args, **kwargs)

    return make


def is_saving_model() -> bool:
    """Returns whether this thread traces functions for a SavedModel."""
    return save_context.in_save_context()


def in_saved_graph() -> bool:
    """Returns whether the graph of a SavedModel itself is being built.

    Its functions have their own graphs.
    """
    return (
        is_saving_model()
        and not tf.executing_eagerly()
        and not tf.inside_function()
    )


@contextlib.contextmanager
def saving_model() -> Iterator[None]:
    """Makes functions trace as for a SavedModel.

    Functions that were traced otherwise are retraced: TensorFlow's cache of
    traces includes the options of the save context.
    """
    if save_context.in_save_context():
        yield
        return
    with save_context.save_context(tf.saved_model.SaveOptions()):
        yield


def traced_again(
    original: Callable[..., Any], is_for_workers: Callable[[], bool]
) -> Callable[..., Any]:
    """Returns a `get_concrete_function` whose results SavedModels retrace.

    TensorFlow retraces a `tf.function` when it writes a SavedModel. A concrete
    function no longer has its Python code: as a signature, it would be written
    as it was traced for the cluster.

    Used since TensorFlow 2.20: `ConcreteFunction._call_impl`, through which a
    signature is called while it is written.

    Args:
        original: TensorFlow's own method.
        is_for_workers: Returns whether this thread traces a function for
            workers. These are never signatures, and stay unchanged.
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
    """Returns whether an argument is part of the signature, without a value."""
    kinds = (tf.TypeSpec, str, bool, int, float)
    return argument is None or isinstance(argument, kinds)


def uninitialized_variable(
    shape: tf.TensorShape, dtype: tf.DType, name: str, **options: Any
) -> tf.Variable:
    """Creates a plain variable of this process that never gets a value.

    It takes no memory. Public variables always have a value.

    Args:
        shape: Full static shape.
        dtype: Dtype of the elements.
        name: Name shown to the user.
        **options: `trainable`, `synchronization` and `aggregation`, as in
            `tf.Variable`.
    """
    with tf.init_scope(), tf.device("/device:CPU:0"):
        # Does not call the class: a strategy would create the variable.
        variable = object.__new__(resource_variable_ops.UninitializedVariable)
        variable.__init__(shape=shape, dtype=dtype, name=name, **options)
    return variable


def copy_into_graph(variable: Any) -> tf.Variable:
    """Returns the variable's copy in the graph of the SavedModel."""
    return resource_variable_ops.copy_to_graph_uninitialized(variable)


def describe_variable(variable: Any, proto: Any, options: Any) -> None:
    """Writes the description of a variable to a SavedModel.

    Args:
        variable: An object with the properties of a `tf.Variable`.
        proto: The `SavedObject` to fill.
        options: The `tf.saved_model.SaveOptions`.
    """
    resource_variable_ops.write_object_proto_for_resource_variable(
        variable, proto, options, enforce_naming=False
    )
