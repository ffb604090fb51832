"""Private TensorFlow API for making one graph function out of another.

TensorFlow has no public way to read the operations of called functions, to copy
an operation of another graph, or to create a concrete function with the
captures of another.
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
from tensorflow.core.function.trace_type import default_types
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import func_graph
from tensorflow.python.framework import ops
from tensorflow.python.ops import handle_data_util

from tfps_plugin._compat.graph import tensorflow_captures

FuncGraph: TypeAlias = func_graph.FuncGraph

_T = TypeVar("_T")

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# Attributes of calls that are compiled as a whole, or never inlined.
_KEPT_WHOLE = ("_XlaMustCompile", "_noinline")


def outermost_function(graph: tf.Graph) -> tf.Graph:
    """Returns the function that is traced around all others, or `graph`."""
    outer = graph
    while isinstance(outer, func_graph.FuncGraph):
        graph, outer = outer, outer.outer_graph
    return graph


def with_outer(graph: tf.Graph) -> Iterator[tf.Graph]:
    """Yields a function, and those around it, whose tensors it may capture."""
    while isinstance(graph, func_graph.FuncGraph):
        yield graph
        graph = graph.outer_graph


def attached(graph: tf.Graph, name: str, make: Callable[[], _T]) -> _T:
    """Returns an object that a graph keeps as long as it exists.

    Args:
        graph: The graph.
        name: A name that identifies the object among those of this library.
        make: Creates the object when it is first needed.
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
    """Returns the inputs of a function: its arguments, then its captures.

    While it is traced, handles that calls look up are no inputs yet.
    """
    inputs = list(graph.inputs)
    known = {id(tensor) for tensor in inputs}
    looked_up = graph.function_captures.by_ref_internal.values()
    return inputs + [each for each in looked_up if id(each) not in known]


def control_outputs(graph: FuncGraph) -> list[tf.Operation]:
    """Returns the operations that run even if no result needs them."""
    return list(graph.control_outputs)


def called_graph(operation: tf.Operation) -> FuncGraph | None:
    """Returns the graph of the function that an operation calls.

    Returns:
        The graph; None if the operation is not a plain call, or must stay a
        call.
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
    """Returns the graph of a function, with only the function's own outputs.

    If a function is differentiated, its graph gets further outputs.
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
    """Returns the functions that an operation runs, by attribute.

    Functions in lists, as of a `Case`, have their index in the key:
    `branches/0`.
    """
    found = {}
    for name, function_name in _function_names(operation).items():
        function = operation.graph._get_function(function_name)
        if function is not None:
            found[name] = _graph_of(function)
    return found


def _function_names(operation: tf.Operation) -> dict[str, str]:
    """Returns the names of an operation's functions, by attribute."""
    names = {}
    for key, value in operation.node_def.attr.items():
        if value.HasField("func"):
            names[key] = value.func.name
        for place, function in enumerate(value.list.func):
            names[f"{key}/{place}"] = function.name
    return names


def operations_within(graph: FuncGraph) -> Iterator[tf.Operation]:
    """Yields all operations of a function, and of functions that it runs.

    The operations of a function appear as often as it is run.
    """
    for operation in graph.get_operations():
        yield operation
        for inner in functions_of(operation).values():
            yield from operations_within(inner)


def devices_within(graph: FuncGraph) -> frozenset[str]:
    """Returns the devices that operations of a function name.

    Args:
        graph: Graph of the function. Functions that it runs count, too.
    """
    found: set[str] = set()
    seen: set[int] = set()
    left = [graph]
    while left:
        inner = left.pop()
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        for operation in inner.get_operations():
            found.add(operation.device)
            left += functions_of(operation).values()
    return frozenset(found - {""})


def in_topological_order(graph: FuncGraph) -> list[tf.Operation]:
    """Returns all operations of a function, each after those that it needs.

    Usually this is the order in which they were made. But some of them got
    control inputs later.
    """
    ordered: list[tf.Operation] = []
    entered: set[tf.Operation] = set()
    left: set[tf.Operation] = set()
    for root in graph.get_operations():
        stack = [root]
        while stack:
            operation = stack[-1]
            if operation in left:
                stack.pop()
                continue
            if operation in entered:
                stack.pop()
                left.add(operation)
                ordered.append(operation)
                continue
            entered.add(operation)
            before = [t.op for t in operation.inputs]
            before += operation.control_inputs
            stack.extend(one for one in before if one not in left)
    return ordered


def draws_from_a_seed(operation: tf.Operation) -> bool:
    """Returns whether an operation draws random numbers from its own seed.

    It continues from its own last number, so two copies draw the same numbers.
    """
    attributes = operation.node_def.attr
    return is_stateful(operation) and any(
        name in attributes and attributes[name].i for name in ("seed", "seed2")
    )


# Operations by which a function takes a batch from an iterator.
_READS_OF_INPUT = frozenset(
    {"IteratorGetNext", "IteratorGetNextSync", "OptionalGetValue"}
)


# Operations that make a part of a batch of what an iterator gives for it.
_UNPACKS_INPUT = frozenset(
    {"Identity", "RaggedTensorFromVariant", "DeserializeSparse"}
)


def is_read_of_input(operation: tf.Operation) -> bool:
    """Returns whether an operation takes a batch from an iterator."""
    return operation.type in _READS_OF_INPUT


def is_input(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor is what an iterator has given, unchanged."""
    operation = tensor.op
    while operation.type in _UNPACKS_INPUT:
        operation = operation.inputs[0].op
    return is_read_of_input(operation)


def runs_functions(operation: tf.Operation) -> bool:
    """Returns whether an operation calls functions, or passes them on."""
    return bool(_function_names(operation))


def is_stateful(operation: tf.Operation) -> bool:
    """Returns whether an operation does more than compute its outputs."""
    return operation._is_stateful


def makes_a_handle(operation: tf.Operation) -> bool:
    """Returns whether an operation only finds or makes a resource by its name.

    TensorFlow counts it as stateful, but nothing depends on when it runs.
    """
    return (
        bool(operation.outputs)
        and all(each.dtype == tf.resource for each in operation.outputs)
        and all(each.op.type == "Const" for each in operation.inputs)
    )


def run_unasked(operation: tf.Operation) -> None:
    """Makes an operation run although no result of its function needs it.

    TensorFlow's optimizers remove such operations from the bodies of loops,
    even those with side effects.

    Used since TensorFlow 2.20: the attribute that `GrapplerItem` reads.
    """
    operation._set_attr(
        "_grappler_do_not_remove", attr_value_pb2.AttrValue(b=True)
    )


def come_before_effects(
    function: tf.types.experimental.ConcreteFunction, output: int
) -> None:
    """Makes an output not wait for the side effects of its function.

    That goes for functions that fusion makes of callers; call it before they
    are traced. TensorFlow's own have all outputs wait.

    Args:
        function: A function that only others call.
        output: Index of the output.
    """
    function.outputs[output].op._remove_all_control_inputs()


def run_rounds_in_order(loop: tf.Operation) -> None:
    """Makes a loop start each round on a task after the last has ended there.

    Used since TensorFlow 2.20: an attribute of the operation `While`, which
    the executor of every task obeys.
    """
    loop._set_attr("parallel_iterations", attr_value_pb2.AttrValue(i=1))


def attributes_as_key(operation: tf.Operation) -> Hashable:
    """Returns a key that is equal for operations with equal attributes."""
    return tuple(
        sorted(
            (key, value.SerializeToString(deterministic=True))
            for key, value in operation.node_def.attr.items()
            # Colocation, and known shapes of the results.
            if key not in ("_class", "_output_shapes")
        )
    )


def new_graph(
    like: FuncGraph, name: str, *, without: Collection[int] = ()
) -> tuple[FuncGraph, dict[int, tf.Tensor]]:
    """Creates a function without operations, with the inputs of another.

    Args:
        like: The other function.
        name: Name of the new function.
        without: Positions of captures, among the other's arguments, that the
            new function does not get.

    Returns:
        The graph, and its arguments by their positions among the other's.
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
    # A reference to the function keeps its captures alive, like the other's.
    graph._weak_variables = list(like._weak_variables)
    return graph, {
        place: counterparts[id(tensor)] for place, tensor in kept.items()
    }


def take_for(tensor: tf.Tensor, other: tf.Tensor) -> None:
    """Gives a handle the shape and handle data of another.

    Args:
        tensor: The handle, in a function.
        other: The other handle, in this or another function.
    """
    tensor.set_shape(other.shape)
    handle_data_util.copy_handle_data(other, tensor)


def was_made_by(operation: tf.Operation, other: tf.Operation) -> None:
    """Makes errors of an operation show where the program made another."""
    # Operations from a file have no traceback.
    trace = other.traceback
    if trace is not None:
        # A copy: TensorFlow's object belongs to the other operation.
        pywrap_tf_session.TF_SetOpStackTrace(operation._c_op, trace[:])


def copy_operation(
    operation: tf.Operation,
    graph: FuncGraph,
    inputs: Sequence[tf.Tensor],
    controls: Iterable[tf.Operation],
    device: str | None = None,
    functions: Mapping[str, Any] | None = None,
) -> tf.Operation:
    """Copies an operation of another graph.

    Errors at run time show where the program made the original.

    Args:
        operation: The original.
        graph: The graph of the copy.
        inputs: Inputs of the copy.
        controls: Control inputs of the copy.
        device: Device of the copy; None: that of the original.
        functions: Functions to run instead of those of the original, by
            attribute as in `functions_of`.
    """
    attributes = {
        key: value
        for key, value in operation.node_def.attr.items()
        # It contains names of operations of the other graph.
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
    """Returns a concrete function of a graph from `new_graph`.

    Args:
        graph: The complete graph, with outputs in the order of the other's.
        like: The other function, which has the same signature and structure
            of results.
    """
    graph.structured_outputs = tf.nest.pack_sequence_as(
        like.graph.structured_outputs,
        _with_nones(like.graph.structured_outputs, graph.outputs),
        expand_composites=True,
    )
    return concrete_function.ConcreteFunction.from_func_graph(
        graph, like.function_type, {}
    )


def with_output(
    function: tf.types.experimental.ConcreteFunction,
    tensor: tf.Tensor,
    derived: Callable[[tf.Tensor], tf.Tensor],
) -> tf.types.experimental.ConcreteFunction:
    """Returns a copy of a function that has one more result.

    Args:
        function: A function that was traced.
        tensor: A tensor of its graph.
        derived: Makes the result of the copy of that tensor, in the copy.

    Returns:
        A function of the same arguments. It returns what `function` returns,
        and the result.
    """
    old = function.graph
    graph, arguments = new_graph(old, f"{old.name}_with_output")
    # Once a function was differentiated, its graph has further outputs.
    outputs = old.outputs[: len(function.function_type.flat_outputs)]
    tensors = {old.inputs[n].ref(): own for n, own in arguments.items()}
    made: dict[tf.Operation, tf.Operation] = {}
    given = {each.op for each in old.inputs}
    with graph.as_default():
        for operation in in_topological_order(old):
            if operation in given:
                continue
            copy = copy_operation(
                operation,
                graph,
                [tensors[each.ref()] for each in operation.inputs],
                [made[o] for o in operation.control_inputs if o in made],
            )
            made[operation] = copy
            for theirs, own in zip(
                operation.outputs, copy.outputs, strict=True
            ):
                tensors[theirs.ref()] = own
        another = derived(tensors[tensor.ref()])
    graph.outputs = [*(tensors[each.ref()] for each in outputs), another]
    graph.control_outputs = [made[each] for each in old.control_outputs]
    both = old.structured_outputs, another
    graph.structured_outputs = tf.nest.pack_sequence_as(
        both, _with_nones(both, graph.outputs), expand_composites=True
    )
    return concrete_function.ConcreteFunction.from_func_graph(
        graph, _returning_also(function.function_type, another), function._attrs
    )


def _returning_also(function_type: Any, tensor: tf.Tensor) -> Any:
    """Returns the type of a function that also returns a tensor."""
    return type(function_type)(
        function_type.parameters.values(),
        function_type.captures,
        return_annotation=default_types.Tuple(
            function_type.output, tf.TensorSpec(tensor.shape, tensor.dtype)
        ),
    )


def _with_nones(structure: Any, outputs: Sequence[tf.Tensor]) -> list[Any]:
    """Returns the outputs, with None wherever a structure has it."""
    remaining = iter(outputs)
    return [
        None if leaf is None else next(remaining)
        for leaf in tf.nest.flatten(structure, expand_composites=True)
    ]


def as_function(graph: FuncGraph, like: FuncGraph) -> Any:
    """Returns a function for other operations, such as the body of a loop.

    Args:
        graph: The complete graph.
        like: The graph of the function that it replaces.
    """
    name = f"{like.name}_fused_{ops.uid()}"
    return atomic_function.from_func_graph(name, graph, {})
