"""Private TensorFlow API for making one graph function out of another.

TensorFlow has no public way to read the operations of the functions that a
function calls, nor to make an operation like one of another graph, or a
concrete function that captures what another one does.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TypeAlias
from typing import TypeVar

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import func_graph
from tensorflow.python.framework import ops
from tensorflow.python.ops import handle_data_util

from tfps_plugin._compat import tensorflow_captures

FuncGraph: TypeAlias = func_graph.FuncGraph

_T = TypeVar("_T")

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# Calls that are compiled as a whole, or kept as one by request.
_KEPT_WHOLE = ("_XlaMustCompile", "_noinline")


def outermost_function(graph: tf.Graph) -> tf.Graph:
    """Returns the function that is traced around all others, or `graph`."""
    outer = graph
    while isinstance(outer, func_graph.FuncGraph):
        graph, outer = outer, outer.outer_graph
    return graph


def attached(graph: tf.Graph, name: str, make: Callable[[], _T]) -> _T:
    """Returns an object that a graph holds for as long as it exists.

    Args:
        graph: The graph.
        name: Tells this library's objects apart.
        make: Makes the object when it is first asked for.
    """
    attribute = f"_tfps_{name}"
    found: _T | None = getattr(graph, attribute, None)
    if found is None:
        found = make()
        setattr(graph, attribute, found)
    return found


def is_kept_whole(function: tf.types.experimental.ConcreteFunction) -> bool:
    """Returns whether a function is compiled, or must stay whole otherwise."""
    return _has_to_stay_whole(function.function_def.attr)


def arguments(graph: FuncGraph) -> list[tf.Tensor]:
    """Returns the inputs of a function: its arguments, then its captures."""
    return list(graph.inputs)


def control_outputs(graph: FuncGraph) -> list[tf.Operation]:
    """Returns the operations that run even if no result needs them."""
    return list(graph.control_outputs)


def called_graph(operation: tf.Operation) -> FuncGraph | None:
    """The graph of the function that an operation calls, and no more.

    Returns:
        The graph; None if the operation is no such call, or one that must
        stay a call.
    """
    if operation.type not in _CALLS:
        return None
    name = operation.get_attr("f").name
    function = operation.graph._get_function(name)
    if function is None:
        return None
    if _has_to_stay_whole(operation.node_def.attr) or _has_to_stay_whole(
        function.cached_definition.attr
    ):
        return None
    return _graph_of(function)


def _graph_of(function: Any) -> FuncGraph:
    """The graph of a function, with what it returns and nothing else.

    Where gradients are taken of a function, its graph gets further outputs.
    """
    graph: FuncGraph = function.graph
    signature = function.cached_definition.signature
    if len(graph.outputs) == len(signature.output_arg) and len(
        graph.inputs
    ) == len(signature.input_arg):
        return graph
    return atomic_function.to_func_graph(function)


def _has_to_stay_whole(attributes: Any) -> bool:
    return any(
        name in attributes and attributes[name].b for name in _KEPT_WHOLE
    )


def functions_of(operation: tf.Operation) -> dict[str, FuncGraph]:
    """The functions that an operation runs, by the attribute that names each.

    Those of lists, as of a `Case`, have the place in the list behind them:
    `branches/0`.
    """
    found = {}
    for name, function_name in _function_names(operation).items():
        function = operation.graph._get_function(function_name)
        if function is not None:
            found[name] = _graph_of(function)
    return found


def _function_names(operation: tf.Operation) -> dict[str, str]:
    """The names of an operation's functions, by attributes."""
    names = {}
    for key, value in operation.node_def.attr.items():
        if value.HasField("func"):
            names[key] = value.func.name
        for place, function in enumerate(value.list.func):
            names[f"{key}/{place}"] = function.name
    return names


def operations_within(graph: FuncGraph) -> Iterator[tf.Operation]:
    """All operations of a function, and of those that it runs.

    Those of a function that is run in several places come as often.
    """
    for operation in graph.get_operations():
        yield operation
        for inner in functions_of(operation).values():
            yield from operations_within(inner)


def draws_from_a_seed(operation: tf.Operation) -> bool:
    """Returns whether an operation draws random numbers from a seed of its own.

    It goes on from where it was when it last ran. Two of them draw the same
    numbers, each for itself.
    """
    attributes = operation.node_def.attr
    return is_stateful(operation) and any(
        name in attributes and attributes[name].i for name in ("seed", "seed2")
    )


def runs_functions(operation: tf.Operation) -> bool:
    """Returns whether an operation calls functions, or hands them to others."""
    return bool(_function_names(operation))


def is_stateful(operation: tf.Operation) -> bool:
    """Returns whether an operation does more than to compute its outputs."""
    return operation._is_stateful


def run_unasked(operation: tf.Operation) -> None:
    """Has an operation run that no result of its function waits for.

    TensorFlow's optimizers leave such operations out of the bodies of loops,
    even those that change something.

    Used since TensorFlow 2.20: the attribute that `GrapplerItem` looks at.
    """
    operation._set_attr(
        "_grappler_do_not_remove", attr_value_pb2.AttrValue(b=True)
    )


def run_rounds_in_order(loop: tf.Operation) -> None:
    """Has a loop begin a round on a task when the one before has ended there.

    Used since TensorFlow 2.20: an attribute of the operation `While`, which
    the executor of every task goes by.
    """
    loop._set_attr("parallel_iterations", attr_value_pb2.AttrValue(i=1))


def attributes_as_key(operation: tf.Operation) -> Hashable:
    """Equal for operations whose attributes are equal."""
    return tuple(
        sorted(
            (key, value.SerializeToString(deterministic=True))
            for key, value in operation.node_def.attr.items()
            # With which others it is placed; what is known of its results.
            if key not in ("_class", "_output_shapes")
        )
    )


def new_graph(
    like: FuncGraph, name: str, *, without: Collection[int] = ()
) -> tuple[FuncGraph, dict[int, tf.Tensor]]:
    """A function without operations that is given what another is given.

    Args:
        like: The other.
        name: Of the new one.
        without: The places of captures among the other's arguments that the
            new one is not given.

    Returns:
        The graph, and its arguments by their places among the other's.
    """
    graph = FuncGraph(name)
    counterparts: dict[int, tf.Tensor] = {}
    kept = {
        place: tensor
        for place, tensor in enumerate(like.inputs)
        if place not in without
    }
    with graph.as_default():
        for tensor in kept.values():
            copy = copy_operation(tensor.op, graph, [], []).outputs[0]
            take_for(copy, tensor)
            counterparts[id(tensor)] = copy
    graph.inputs = [counterparts[id(tensor)] for tensor in kept.values()]
    graph.structured_input_signature = like.structured_input_signature
    tensorflow_captures.copy(like, graph, counterparts)
    # Whoever keeps the function keeps what it captures, as the other did.
    graph._weak_variables = list(like._weak_variables)
    return graph, {
        place: counterparts[id(tensor)] for place, tensor in kept.items()
    }


def take_for(tensor: tf.Tensor, other: tf.Tensor) -> None:
    """Has a handle say that it is one of what another one is of.

    Args:
        tensor: The handle, in a function.
        other: In this or another function.
    """
    tensor.set_shape(other.shape)
    handle_data_util.copy_handle_data(other, tensor)


def was_made_by(operation: tf.Operation, other: tf.Operation) -> None:
    """Has errors of an operation show where the program made another one."""
    # Nobody knows where those were made that come out of a file.
    trace = other.traceback
    if trace is not None:
        # What TensorFlow hands out belongs to the other; a slice is our own.
        pywrap_tf_session.TF_SetOpStackTrace(operation._c_op, trace[:])


def copy_operation(
    operation: tf.Operation,
    graph: FuncGraph,
    inputs: Sequence[tf.Tensor],
    controls: Iterable[tf.Operation],
    device: str | None = None,
    functions: Mapping[str, Any] | None = None,
) -> tf.Operation:
    """Makes an operation like one of another graph.

    Errors at run time show where the program made the other.

    Args:
        operation: The other.
        graph: Where to make it.
        inputs: What it is given there.
        controls: What it runs after there.
        device: Where it runs; None: where the other does.
        functions: By attributes as in `functions_of`, functions to run in the
            place of those that the other one runs.
    """
    attributes = {
        key: value
        for key, value in operation.node_def.attr.items()
        # The names of operations of the other graph.
        if key != "_class"
    }
    for name, function in (functions or {}).items():
        graph._add_function_recursive(function)
        key, _, place = name.partition("/")
        changed = attr_value_pb2.AttrValue()
        changed.CopyFrom(attributes[key])
        named = changed.list.func[int(place)] if place else changed.func
        named.name = function.name.decode()
        attributes[key] = changed
    for name, function_name in _function_names(operation).items():
        kept = operation.graph._get_function(function_name)
        if kept is not None and name not in (functions or {}):
            graph._add_function_recursive(kept)
    copy = graph._create_op_internal(
        operation.type,
        list(inputs),
        [output.dtype for output in operation.outputs],
        name=operation.name,
        attrs=attributes,
        op_def=operation.op_def,
        compute_device=False,
    )
    copy._set_device_from_string(operation.device if device is None else device)
    controls = list(controls)
    if controls:
        copy._add_control_inputs(controls)
    for old, new in zip(operation.outputs, copy.outputs, strict=True):
        new.set_shape(old.shape)
    was_made_by(copy, operation)
    return copy


def as_concrete_function(
    graph: FuncGraph,
    like: tf.types.experimental.ConcreteFunction,
) -> tf.types.experimental.ConcreteFunction:
    """A concrete function of a graph from `new_graph`.

    Args:
        graph: Complete, with outputs in the order of the other's.
        like: The other; how it is called, and what it returns, stays.
    """
    graph.structured_outputs = tf.nest.pack_sequence_as(
        like.graph.structured_outputs,
        _with_nones(like.graph.structured_outputs, graph.outputs),
        expand_composites=True,
    )
    return concrete_function.ConcreteFunction.from_func_graph(
        graph, like.function_type, {}
    )


def _with_nones(structure: Any, outputs: Sequence[tf.Tensor]) -> list[Any]:
    """The outputs, and None wherever a structure has it."""
    remaining = iter(outputs)
    return [
        None if leaf is None else next(remaining)
        for leaf in tf.nest.flatten(structure, expand_composites=True)
    ]


def as_function(graph: FuncGraph, like: FuncGraph) -> Any:
    """A function for other operations to run, such as a loop's body.

    Args:
        graph: Complete.
        like: The graph of the function that it replaces.
    """
    name = f"{like.name}_fused_{ops.uid()}"
    return atomic_function.from_func_graph(name, graph, {})
