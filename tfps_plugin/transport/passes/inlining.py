"""Inlining of the functions that a function calls.

A traced step consists of functions that call functions. Here it becomes one
list of operations, so that fusion sees them all. Loops and branches stay:
their bodies are rewritten by themselves.
"""

import collections
from collections.abc import Collection
from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_graphs as compat
from tfps_plugin.transport.flat_function import FlatFunction
from tfps_plugin.transport.flat_function import FlatOperation
from tfps_plugin.transport.passes import dead_code
from tfps_plugin.transport.passes import deferred_controls
from tfps_plugin.transport.waves import Output


def flatten(
    graph: compat.FuncGraph, *, steps_apart: bool = False
) -> FlatFunction:
    """Lists the operations of a function that something needs.

    Args:
        graph: Graph of the function.
        steps_apart: Whether repeated calls of one function do not wait for
            each other. `step_order` restores the order that matters.

    Returns:
        The function with all calls inlined and dead code left out.
    """
    arguments = compat.arguments(graph)
    inliner = _Inliner()
    if steps_apart:
        inliner.repeated = _repeated(graph)
    inputs = [
        inliner.add(FlatOperation(tensor.op, (), (), tensor.device or ""))
        for tensor in arguments
    ]
    returned, controls = inliner.inline(
        graph, [Output(number, 0) for number in inputs], "", ()
    )
    return dead_code.eliminate(
        deferred_controls.hand_on(
            FlatFunction(
                inliner.operations,
                len(arguments),
                tuple(returned),
                tuple(controls),
            )
        )
    )


class _Inliner:
    """Collects operations."""

    def __init__(self) -> None:
        self.operations: list[FlatOperation] = []
        self.repeated: Collection[tf.Operation] = ()
        self._num_steps = 0
        self._step = 0

    def add(self, operation: FlatOperation) -> int:
        self.operations.append(operation)
        return len(self.operations) - 1

    def inline(
        self,
        graph: compat.FuncGraph,
        arguments: Sequence[Output],
        device: str,
        controls: tuple[int, ...],
    ) -> tuple[list[Output], list[int]]:
        """Adds the operations of a function.

        Args:
            graph: Graph of the function.
            arguments: Its arguments.
            device: Device that it is called on.
            controls: Operations that it is called after.

        Returns:
            Its outputs, and the operations that have run when it has ended.
        """
        tensors = {
            tensor.ref(): argument
            for tensor, argument in zip(
                compat.arguments(graph), arguments, strict=True
            )
        }
        given = {tensor.op for tensor in compat.arguments(graph)}
        # The operations that stand for each one: itself, or those of a call.
        done: dict[tf.Operation, tuple[int, ...]] = dict.fromkeys(given, ())
        # Whether an operation waits for `controls` by way of another.
        waits: dict[tf.Operation, bool] = {}
        # Operations that the users of a handle wait for.
        by_way: dict[tf.Operation, tuple[int, ...]] = {}
        for operation in compat.in_topological_order(graph):
            if operation in given:
                continue
            before = [t.op for t in operation.inputs]
            before += operation.control_inputs
            waited = any(waits.get(one, False) for one in before)
            inputs = tuple(tensors[t.ref()] for t in operation.inputs)
            after = tuple(
                dict.fromkeys(
                    number
                    for one in operation.control_inputs
                    for number in done[one]
                )
            )
            # TensorFlow lets an operation wait by way of the handle it uses.
            after = tuple(
                dict.fromkeys(
                    (
                        *after,
                        *(n for one in before for n in by_way.get(one, ())),
                    )
                )
            )
            earlier = after
            if compat.makes_a_handle(operation):
                # It need not wait itself. TensorFlow chains such operations,
                # in all places; the chain is no reason to wait.
                by_way[operation] = tuple(
                    number
                    for one in operation.control_inputs
                    if one not in by_way
                    for number in done[one]
                )
                waited, after = False, ()
            elif compat.is_stateful(operation) and not waited:
                after = tuple(dict.fromkeys((*after, *controls)))
                waited = True
            waits[operation] = waited
            deferred = () if waited else controls
            where = _merged(operation.device, device)
            inner = compat.called_graph(operation)
            if inner is None:
                number = self.add(
                    FlatOperation(
                        operation, inputs, after, where, self._step, deferred
                    )
                )
                done[operation] = earlier if operation in by_way else (number,)
                outputs = [
                    Output(number, index)
                    for index in range(len(operation.outputs))
                ]
            else:
                outputs, ended = self._inline_call(
                    operation,
                    inner,
                    inputs,
                    where,
                    tuple(dict.fromkeys((*after, *deferred))),
                )
                ended += [output.node for output in outputs]
                done[operation] = tuple(dict.fromkeys((*ended, *after)))
            for tensor, output in zip(operation.outputs, outputs, strict=True):
                tensors[tensor.ref()] = output
        return (
            [tensors[tensor.ref()] for tensor in graph.outputs],
            [
                number
                for operation in compat.control_outputs(graph)
                for number in done[operation]
            ],
        )

    def _inline_call(
        self,
        operation: tf.Operation,
        inner: compat.FuncGraph,
        inputs: tuple[Output, ...],
        where: str,
        after: tuple[int, ...],
    ) -> tuple[list[Output], list[int]]:
        """Adds the operations of a called function."""
        if operation not in self.repeated:
            return self.inline(inner, inputs, where, after)
        self._num_steps += 1
        self._step = self._num_steps
        # Steps keep their order in the list, but do not wait for each other.
        after = tuple(n for n in after if not self.operations[n].step)
        try:
            return self.inline(inner, inputs, where, after)
        finally:
            self._step = 0


def _repeated(graph: compat.FuncGraph) -> set[tf.Operation]:
    """Returns the calls of functions that a graph calls more than once."""
    calls = collections.defaultdict(set)
    for operation in graph.get_operations():
        if compat.called_graph(operation) is not None:
            calls[operation.get_attr("f").name].add(operation)
    return {call for same in calls.values() if len(same) > 1 for call in same}


def _merged(device: str, around: str) -> str:
    """Returns the device of an operation in a call on another device."""
    if not around or device == around:
        return device
    if not device:
        return around
    outer = tf.DeviceSpec.from_string(around)
    return outer.make_merged_spec(tf.DeviceSpec.from_string(device)).to_string()
