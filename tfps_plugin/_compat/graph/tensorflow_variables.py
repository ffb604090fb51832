"""Private TensorFlow API around resource variables.

TensorFlow has no public way to make a variable whose handle is looked up when a
function is called. This lets functions outlive a parameter server.
"""

import contextlib
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any
from typing import TypeAlias

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import ops
from tensorflow.python.framework import tensor_conversion_registry
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import handle_data_util
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.ops.control_flow_v2_func_graphs import (
    CondBranchFuncGraph,
)
from tensorflow.python.ops.control_flow_v2_func_graphs import (
    ControlFlowFuncGraph,
)

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_saving

# tf.Variable(...) always goes through the variable creators of the scope;
# subclasses need the class itself.
ResourceVariable: TypeAlias = resource_variable_ops.ResourceVariable


class LateBoundHandleSpec(tf.TensorSpec):
    """Trace type of a resource handle that is looked up at call time.

    A plain `tf.TensorSpec` drops the handle data, which gradients and shape
    inference need.
    """

    def __init__(
        self,
        handle: tf.Tensor,
        device: str = "",
        owner: Callable[[], Any] | None = None,
    ) -> None:
        """Describes the handles that calls will use.

        Args:
            handle: An example of these handles.
            device: Device of the resource; empty: on the worker that makes
                the call.
            owner: Returns the variable of the handles, or None if it no longer
                exists; None: the resource is not a variable.
        """
        super().__init__(handle.shape, handle.dtype)
        self.device = device
        self.owner = owner
        # Does not keep the handle: it would hold the variable's memory, on
        # its ps, as long as TensorFlow remembers the function.
        self._handle_data = getattr(handle, "_handle_data", None)

    def most_specific_common_supertype(self, others: Any) -> Any:
        """Returns itself if all are alike; called when a function is retraced.

        TensorFlow's own method builds a new spec, from arguments that this
        class does not take.
        """
        return self if all(self == other for other in others) else None

    def to_tensors(self, value: Any) -> list[tf.Tensor]:
        """Returns the handle; TensorFlow's own checks it in every call."""
        return [value]

    def placeholder_value(self, placeholder_context: Any) -> tf.Tensor:
        """Returns a placeholder with the variable's shape and dtype."""
        placeholder = super().placeholder_value(placeholder_context)
        # The handle of a lock has no data.
        if self._handle_data is not None and self._handle_data.is_set:
            handle_data_util.set_handle_data(placeholder, self._handle_data)
        return placeholder


def uninitialized_handle(
    shape: tf.TensorShape, dtype: tf.DType, name: str
) -> tf.Tensor:
    """Returns the handle of a new variable resource on the current device.

    Public variables can only be created with a value, which would have to
    exist in one piece. The resource is anonymous and reference counted: it is
    freed with its last handle.
    """
    return resource_variable_ops._variable_handle_from_shape_and_dtype(
        shape=shape,
        dtype=dtype,
        shared_name=None,
        # TensorFlow appends a number, and refuses existing names: the 966th
        # resource of "part_11" would be the 1966th of "part_1".
        name=f"{name}/handle",
        graph_mode=False,
    )


def unique_number() -> int:
    """Returns a number that TensorFlow uses only once in this process."""
    return ops.uid()


def function_graph() -> FuncGraph | None:
    """Returns the function being traced on this thread; None when eager.

    The bodies of loops and branches are functions too, but their calls look up
    nothing: the function around them captures what they need, and passes it on.
    """
    if tf.executing_eagerly():
        return None
    graph = outermost(ops.get_default_graph())
    return graph if isinstance(graph, FuncGraph) else None


def is_in_branch() -> bool:
    """Returns whether this thread traces a branch of a `tf.cond`.

    False in functions that a branch calls, which are separate functions.
    """
    graph = ops.get_default_graph()
    while isinstance(graph, ControlFlowFuncGraph):
        if isinstance(graph, CondBranchFuncGraph):
            return True
        graph = graph.outer_graph
    return False


def outermost(graph: tf.Graph) -> tf.Graph:
    """Returns the function that a loop's body or a branch is in, or itself."""
    while isinstance(graph, ControlFlowFuncGraph):
        graph = graph.outer_graph
    return graph


def capture_at_call_time(
    graph: FuncGraph,
    look_up: Callable[[], tf.Tensor],
    spec: LateBoundHandleSpec,
    key: Hashable,
) -> tf.Tensor:
    """Returns a placeholder in `graph` that each call fills with `look_up()`.

    The graph keeps `look_up`, and TensorFlow may keep the graph forever: a
    function with a custom gradient is registered by its name. So `look_up`
    should not keep large objects alive.

    There is one placeholder per graph and `key`; otherwise automatic control
    dependencies would not order reads and writes.
    """
    captures = graph._function_captures
    if key in captures.by_ref_internal:
        return captures.by_ref_internal[key]
    # Inputs wait for nothing, and their users must not seem to wait.
    with graph.control_dependencies(None):
        placeholder = graph.capture_call_time_value(look_up, spec, key=key)

    def at_call() -> list[tf.Tensor]:
        if tensorflow_saving.is_saving_model():
            raise errors.UnsupportedError(
                "A SavedModel cannot have a function that was traced before: "
                "it asks the parameter servers of this cluster. Pass the "
                "tf.function itself, with an input_signature, in the place of "
                "its get_concrete_function(), so that it is traced for the "
                f"SavedModel. Received: the concrete function {graph.name!r}"
            )
        caller = function_graph()
        value = (
            look_up()
            if caller is None
            else capture_at_call_time(caller, look_up, spec, key)
        )
        return spec.to_tensors(value)

    # TensorFlow's own would ask the graph of the call, even if that is a branch
    # of a condition, which is never called by itself.
    at_call.output_spec = spec  # type: ignore[attr-defined]
    captures.add_or_replace(
        key=key,
        external=at_call,
        internal=placeholder,
        tracetype=spec,
        is_by_ref=True,
    )
    return placeholder


def in_graph(tensor: tf.Tensor, graph: tf.Graph) -> tf.Tensor:
    """Returns a function's tensor as a loop or branch of it captures it."""
    return tensor if tensor.graph is graph else graph.capture(tensor)


def run_after(operation: tf.Operation, earlier: Sequence[tf.Operation]) -> None:
    """Makes an operation of a function wait for earlier operations.

    `tf.control_dependencies` needs them before the operation is created; here
    they are known only afterwards.
    """
    operation._add_control_inputs(list(earlier))


def variable_accessed(variable: Any) -> None:
    """Tells gradient tapes, and the function being traced, of a read."""
    resource_variable_ops.variable_accessed(variable)


def stop_recording() -> Any:
    """Returns a context in which no gradient tape records."""
    return record.stop_recording()


def register_tensor_conversion(
    cls: type, convert: Callable[..., tf.Tensor]
) -> None:
    """Lets TensorFlow's Python operators accept a `cls` as a tensor."""
    tensor_conversion_registry.register_tensor_conversion_function(cls, convert)


def clear_device() -> Any:
    """Returns a context without device scope, inside and outside functions."""
    return ops.device(None)


def is_recording() -> bool:
    """Returns whether a gradient tape records on this thread.

    Used since TensorFlow 2.20: `record.could_possibly_record`.
    """
    return bool(record.could_possibly_record())


def pass_gradients_through(source: tf.Tensor, result: tf.Tensor) -> None:
    """Tells gradient tapes that a gradient of `result` is one of `source`.

    tf.custom_gradient does this with an operation that takes both: if only one
    of them is on a parameter server, both would travel.

    Used since TensorFlow 2.20: `record.record_operation`.

    Args:
        source: The tensor that `result` was computed from, with the same shape
            and dtype.
        result: A tensor that was computed while no tape was recording.
    """
    record.record_operation(
        "PassGradientsThrough", [result], [source], lambda upstream: [upstream]
    )


# Registered once: `tf.custom_gradient` registers a function for each trace, and
# TensorFlow keeps it, with its graph, forever.
_GRADIENT_OF_SECOND = "TfpsGradientOfSecond"

with contextlib.suppress(KeyError):  # if this module is imported anew

    @tf.RegisterGradient(_GRADIENT_OF_SECOND)
    def _gradient_of_second(
        _: tf.Operation, *upstream: tf.Tensor
    ) -> list[tf.Tensor | None]:
        return [None, upstream[0]]


def with_gradient_of(source: tf.Tensor, result: tf.Tensor) -> tf.Tensor:
    """Returns a value whose gradient goes to another tensor instead.

    Args:
        source: Receives the gradient; has the shape and dtype of `result`.
        result: The value, computed while no tape was recording.

    Returns:
        `result`, differentiable by tapes, and by functions that are called
        under a tape.
    """
    with record.stop_recording():
        if not tf.executing_eagerly():
            # Includes loops and branches, whose operations are differentiated
            # one by one.
            with ops.get_default_graph().gradient_override_map(
                {"IdentityN": _GRADIENT_OF_SECOND}
            ):
                result, _ = tf.identity_n([result, source])
    pass_gradients_through(source, result)
    return result


# Registered once, as above.
_GRADIENT_OF_ROWS = "TfpsGradientOfRows"

with contextlib.suppress(KeyError):  # if this module is imported anew

    @tf.RegisterGradient(_GRADIENT_OF_ROWS)
    def _gradient_of_rows(
        operation: tf.Operation, upstream: Any
    ) -> tuple[tf.IndexedSlices, None]:
        """Replaces TensorFlow's own, which reads the variable's shape.

        TensorFlow's also does not sum gradients that are slices of the rows.
        """
        handle, coordinates_U1 = operation.inputs
        slices = tf.IndexedSlices(
            tf.convert_to_tensor(upstream),
            tf.squeeze(coordinates_U1, 1),
            resource_variable_ops.variable_shape(handle),
        )
        return slices, None


def gather_by_coordinates(
    handle: tf.Tensor, coordinates_U1: tf.Tensor, dtype: tf.DType
) -> tf.Tensor:
    """Gathers rows of a variable by `ResourceGatherNd`.

    Args:
        handle: Handle of the variable, a matrix.
        coordinates_U1: Row numbers, shape `(U, 1)`.
        dtype: Dtype of the variable.

    Returns:
        The rows, shape `(U, D)`. Functions that differentiate the graph get
        slices of the variable; no gradient tape sees the operation.
    """
    # Includes loops and branches, whose operations are differentiated one by
    # one.
    graph = ops.get_default_graph()
    override = (
        contextlib.nullcontext()
        if tf.executing_eagerly()
        else graph.gradient_override_map(
            {"ResourceGatherNd": _GRADIENT_OF_ROWS}
        )
    )
    with record.stop_recording(), override:
        return tf.raw_ops.ResourceGatherNd(
            resource=handle, indices=coordinates_U1, dtype=dtype
        )


def record_gradient(
    result: tf.Tensor, source: tf.Tensor, gradient: Callable[[Any], Any]
) -> None:
    """Tells gradient tapes how to differentiate a value.

    Unlike tf.custom_gradient, it adds no operation.

    Args:
        result: The value, computed while no tape was recording.
        source: The tensor that it depends on.
        gradient: Maps the gradient of `result` to that of `source`.
    """
    record.record_operation(
        "RecordedGradient",
        [result],
        [source],
        lambda upstream: [gradient(upstream)],
    )


def read_resource(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Reads a variable through its handle, unseen by any gradient tape."""
    with record.stop_recording():
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
