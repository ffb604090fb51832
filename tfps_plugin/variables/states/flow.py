"""Data flow of a traced function, from reads of variables to its writes."""

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_captures
from tfps_plugin._compat.graph import tensorflow_graphs as compat

# Operations that return what a variable holds.
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})
# Operations that use a variable, but not its value.
_LOOKS = frozenset({"VarIsInitializedOp", "VariableShape"})
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
_LOOPS = frozenset({"While", "StatelessWhile"})
_TAKES_LOCK = "MutexLock"
# Bits of a mask; those of reads follow.
DATA = 1
_FIRST_READ_BIT = 1


class Frame:
    """One call of a function: its graph and its arguments.

    Attributes:
        graph: The graph.
        is_conditional: Whether a step may not run it.
        is_loop: Whether a step may run it several times.
        given: The caller's frame and tensor, by the ids of the arguments;
            empty in loops, where arguments change with each iteration.
        inner: The frames that its operations run, by the operations' names.
    """

    def __init__(
        self,
        graph: compat.FuncGraph,
        *,
        is_conditional: bool = False,
        is_loop: bool = False,
        control: int = 0,
    ) -> None:
        """Begins without knowledge of any tensor."""
        self.graph = graph
        self.is_conditional = is_conditional
        self.is_loop = is_loop
        self.given: dict[int, tuple[Frame, tf.Tensor]] = {}
        self.inner: dict[str, list[Frame]] = {}
        self._control = control
        self._masks: dict[int, int] = {}
        self._variables: dict[int, tuple[Any, ...]] = {}
        # Tensors whose ids are keys above.
        self._kept: list[tf.Tensor] = []

    @property
    def control(self) -> int:
        """The reads that decide whether, or how often, it runs, as bits."""
        return self._control

    def mask(self, tensor: tf.Tensor) -> int:
        """Returns the reads that flow into a tensor, as bits."""
        return self._masks.get(id(tensor), 0)

    def variables(self, tensor: tf.Tensor) -> tuple[Any, ...]:
        """Returns the variables that a handle may belong to."""
        return self._variables.get(id(tensor), ())

    def know(
        self, tensor: tf.Tensor, mask: int, variables: Sequence[Any] = ()
    ) -> None:
        """Records the reads and variables of a tensor."""
        self._kept.append(tensor)
        self._masks[id(tensor)] = mask
        self._variables[id(tensor)] = tuple(variables)


@dataclasses.dataclass(frozen=True)
class Write:
    """An operation that changes a variable.

    Attributes:
        variable: The variable.
        operation: The operation.
        frame: The frame that it belongs to.
        data: The reads that flow into its arguments.
        mask: The same, and the reads that decide whether it runs.
        lock: The lock that it runs under, unique in the flow; or None.
    """

    variable: Any
    operation: tf.Operation
    frame: Frame
    data: int
    mask: int
    lock: Any


class Flow:
    """Writes of a function, and the reads that flow into them.

    Follows values through branches, loops and calls of functions. All inputs
    of an operation flow into all its outputs.

    Attributes:
        root: The function's own frame.
        writes: All of its writes, in the order of the program.
        outputs: The reads that flow into its results.
    """

    def __init__(self, graph: compat.FuncGraph) -> None:
        """Walks through a function."""
        self.root = Frame(graph)
        self.writes: list[Write] = []
        self._bits: dict[tuple[int, Any], int] = {}
        self._collects = True
        owners: Mapping[int, Any] = tensorflow_captures.variables(graph)
        self.variables = list(
            {id(variable): variable for variable in owners.values()}.values()
        )
        for tensor in compat.arguments(graph):
            owner = owners.get(id(tensor))
            if owner is not None:
                self.root.know(tensor, 0, [owner])
            elif tensor.dtype == tf.resource:
                self.root.know(tensor, 0)
            else:
                self.root.know(tensor, DATA)
        self._walk(self.root)
        self.outputs = _union(self.root.mask(t) for t in graph.outputs)

    def reads(self, variable: Any) -> int:
        """Returns the bits of all reads of a variable."""
        return _union(
            bit
            for (owner, _), bit in self._bits.items()
            if owner == id(variable)
        )

    def reads_under(self, variable: Any, lock: Any) -> int:
        """Returns the bit of its reads under a lock; 0 if there are none."""
        return 0 if lock is None else self._bits.get((id(variable), lock), 0)

    def all_reads_under(self, lock: Any) -> int:
        """Returns the bits of all reads under a lock."""
        return _union(
            bit
            for (_, under), bit in self._bits.items()
            if lock is not None and under == lock
        )

    def writes_of(self, variable: Any) -> list[Write]:
        """Returns the writes of a variable, in the order of the program."""
        return [one for one in self.writes if one.variable is variable]

    def _read_bit(self, variable: Any, lock: Any) -> int:
        key = (id(variable), lock)
        if key not in self._bits:
            self._bits[key] = 1 << (len(self._bits) + _FIRST_READ_BIT)
        return self._bits[key]

    def _walk(self, frame: Frame) -> None:
        for operation in frame.graph.get_operations():
            inputs = list(operation.inputs)
            known = [id(t) for t in operation.outputs if id(t) in frame._masks]
            if known:
                continue  # an argument
            kind = operation.type
            if kind in _CALLS and self._is_known(operation):
                self._walk_calls(frame, operation, inputs, 0, 0)
            elif kind in _BRANCHES and self._is_known(operation):
                self._walk_calls(
                    frame, operation, inputs[1:], frame.mask(inputs[0]), 1
                )
            elif kind in _LOOPS and self._is_known(operation):
                self._walk_loop(frame, operation, inputs)
            else:
                self._walk_operation(frame, operation, inputs)

    def _is_known(self, operation: tf.Operation) -> bool:
        return bool(compat.functions_of(operation))

    def _walk_operation(
        self, frame: Frame, operation: tf.Operation, inputs: list[tf.Tensor]
    ) -> None:
        mask = _union(frame.mask(t) for t in inputs)
        variables = [v for t in inputs for v in frame.variables(t)]
        gives = mask
        if operation.type in _READS:
            lock = _lock_of(frame, operation)
            gives |= _union(self._read_bit(v, lock) for v in variables)
        elif (
            variables
            and operation.type not in _LOOKS
            and compat.is_stateful(operation)
        ):
            lock = _lock_of(frame, operation)
            self._collect(
                Write(v, operation, frame, mask, mask | frame.control, lock)
                for v in variables
            )
        for output in operation.outputs:
            is_handle = output.dtype == tf.resource
            frame.know(output, gives, variables if is_handle else ())

    def _walk_calls(
        self,
        frame: Frame,
        operation: tf.Operation,
        inputs: list[tf.Tensor],
        condition: int,
        num_conditions: int,
    ) -> None:
        """Walks through a called function, or all branches of a conditional."""
        inner = []
        for graph in compat.functions_of(operation).values():
            called = Frame(
                graph,
                is_conditional=frame.is_conditional or num_conditions > 0,
                is_loop=frame.is_loop,
                control=frame.control | condition,
            )
            for own, given in zip(graph.inputs, inputs, strict=False):
                called.know(own, frame.mask(given), frame.variables(given))
                called.given[id(own)] = (frame, given)
            self._walk(called)
            inner.append(called)
        frame.inner[operation.name] = inner
        for place, output in enumerate(operation.outputs):
            results = [
                (one, one.graph.outputs[place])
                for one in inner
                if place < len(one.graph.outputs)
            ]
            frame.know(
                output,
                _union(one.mask(t) for one, t in results) | condition,
                [v for one, t in results for v in one.variables(t)],
            )

    def _walk_loop(
        self, frame: Frame, operation: tf.Operation, inputs: list[tf.Tensor]
    ) -> None:
        """Walks through a loop until no further reads flow around it."""
        functions = compat.functions_of(operation)
        masks = [frame.mask(t) for t in inputs]
        control = frame.control
        collects, self._collects = self._collects, False
        while True:
            frames = [
                self._round(frame, graph, inputs, masks, control)
                for graph in (functions["cond"], functions["body"])
            ]
            condition, body = frames
            decides = _union(condition.mask(t) for t in condition.graph.outputs)
            following = [
                mask | body.mask(t)
                for mask, t in zip(masks, body.graph.outputs, strict=False)
            ]
            if following == masks and control | decides == control:
                break
            masks, control = following, control | decides
        self._collects = collects
        frame.inner[operation.name] = [
            self._round(frame, graph, inputs, masks, control)
            for graph in (functions["cond"], functions["body"])
        ]
        for output, mask, given in zip(
            operation.outputs, masks, inputs, strict=False
        ):
            frame.know(output, mask | control, frame.variables(given))

    def _round(
        self,
        frame: Frame,
        graph: compat.FuncGraph,
        inputs: list[tf.Tensor],
        masks: list[int],
        control: int,
    ) -> Frame:
        looped = Frame(
            graph,
            is_conditional=frame.is_conditional,
            is_loop=True,
            control=control,
        )
        for own, given, mask in zip(graph.inputs, inputs, masks, strict=False):
            looped.know(own, mask, frame.variables(given))
        self._walk(looped)
        return looped

    def _collect(self, writes: Iterator[Write]) -> None:
        if self._collects:
            self.writes += writes


def _lock_of(frame: Frame, operation: tf.Operation) -> Any:
    for one in operation.control_inputs:
        if one.type == _TAKES_LOCK:
            return (frame.graph.name, one.name)
    return None


def _union(masks: Any) -> int:
    result = 0
    for mask in masks:
        result |= mask
    return result
