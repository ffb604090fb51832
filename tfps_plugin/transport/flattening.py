"""A function as one list of operations, those of functions it calls as well.

What travels together is found among all operations of a step, and a step is
functions that call functions. Loops and branches stay: what is in them is
another list, for another time.
"""

import dataclasses
from collections.abc import Iterable
from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin._compat import tensorflow_graphs as compat
from tfps_plugin.transport.waves import Output

# They look, or hand on what they are given: where nobody needs what they
# return, they need not run, and whoever waits for one waits for those before.
_DO_NOTHING = frozenset(
    {
        "Const",
        "Identity",
        "IdentityN",
        "NoOp",
        "ReadVariableOp",
        "ResourceGather",
        "VariableShape",
    }
)


@dataclasses.dataclass(slots=True)
class FlatOperation:
    """An operation, and where in the list its inputs come from.

    Attributes:
        operation: As it was traced.
        inputs: What it is given.
        controls: The numbers of those that it runs after.
        device: Where it is to run; empty: on the worker that runs the step.
    """

    operation: tf.Operation
    inputs: tuple[Output, ...]
    controls: tuple[int, ...]
    device: str


@dataclasses.dataclass(slots=True)
class FlatFunction:
    """The operations of a function, each after those that it needs.

    Attributes:
        operations: First the placeholders of the arguments, in their order.
        num_arguments: How many these are.
        outputs: What the function returns.
        controls: Those that run even if nothing that it returns needs them.
    """

    operations: list[FlatOperation]
    num_arguments: int
    outputs: tuple[Output, ...]
    controls: tuple[int, ...]


class Renumbering:
    """What has become of the numbers of a list's operations.

    Attributes:
        kept: The operations of the new list.
    """

    def __init__(self) -> None:
        """Begins with an empty list."""
        self.kept: list[FlatOperation] = []
        self._numbers: dict[int, int] = {}

    def keep(self, number: int, operation: FlatOperation) -> None:
        """Puts an operation that had a number into the new list."""
        self._numbers[number] = len(self.kept)
        self.kept.append(operation)

    def replace(self, number: int, new_number: int) -> None:
        """Has one of the new list stand for an operation of the old one."""
        self._numbers[number] = new_number

    def outputs(self, outputs: Iterable[Output]) -> tuple[Output, ...]:
        """The outputs of operations that were kept or replaced."""
        return tuple(Output(self._numbers[n], index) for n, index in outputs)

    def controls(self, numbers: Iterable[int]) -> tuple[int, ...]:
        """The new numbers of such operations, each once."""
        return tuple(dict.fromkeys(self._numbers[n] for n in numbers))


def flatten(graph: compat.FuncGraph) -> FlatFunction:
    """Lists the operations of a function that something needs.

    Args:
        graph: Of the function.
    """
    arguments = compat.arguments(graph)
    flattener = _Flattener()
    inputs = [
        flattener.add(FlatOperation(tensor.op, (), (), tensor.device or ""))
        for tensor in arguments
    ]
    returned, controls = flattener.inline(
        graph, [Output(number, 0) for number in inputs], "", ()
    )
    return _without_the_unneeded(
        FlatFunction(
            flattener.operations,
            len(arguments),
            tuple(returned),
            tuple(controls),
        )
    )


def splice(
    operations: list[FlatOperation],
    graph: compat.FuncGraph,
    arguments: Sequence[Output],
    device: str,
    controls: tuple[int, ...],
) -> None:
    """Adds the operations of another function at the end of a list.

    Args:
        operations: The list.
        graph: Of the other function.
        arguments: What it is given.
        device: Where it runs.
        controls: What it runs after.
    """
    _Flattener(operations).inline(graph, arguments, device, controls)


class _Flattener:
    """Collects operations."""

    def __init__(self, operations: list[FlatOperation] | None = None) -> None:
        self.operations = [] if operations is None else operations

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
            graph: Of the function.
            arguments: What it is given.
            device: Where it is called.
            controls: What it is called after.

        Returns:
            What it returns, and what must have run when it has ended.
        """
        tensors = {
            tensor.ref(): argument
            for tensor, argument in zip(
                compat.arguments(graph), arguments, strict=True
            )
        }
        given = {tensor.op for tensor in compat.arguments(graph)}
        # What has run when an operation has: itself, or those in a function.
        done: dict[tf.Operation, tuple[int, ...]] = dict.fromkeys(given, ())
        # Whether an operation waits for `controls` by way of another.
        waits: dict[tf.Operation, bool] = {}
        for operation in _in_order(graph):
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
            if compat.is_stateful(operation) and not waited:
                after = tuple(dict.fromkeys((*after, *controls)))
                waited = True
            waits[operation] = waited
            where = _merged(operation.device, device)
            inner = compat.called_graph(operation)
            if inner is None:
                number = self.add(
                    FlatOperation(operation, inputs, after, where)
                )
                done[operation] = (number,)
                outputs = [
                    Output(number, index)
                    for index in range(len(operation.outputs))
                ]
            else:
                outputs, ended = self.inline(inner, inputs, where, after)
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


def _merged(device: str, around: str) -> str:
    """The device of an operation in a function that is called on a device."""
    if not around or device == around:
        return device
    if not device:
        return around
    outer = tf.DeviceSpec.from_string(around)
    return outer.make_merged_spec(tf.DeviceSpec.from_string(device)).to_string()


def _in_order(graph: compat.FuncGraph) -> list[tf.Operation]:
    """All operations, each after those that it needs.

    Usually the order that they were made in; but some are made to wait for
    others afterwards.
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


def _without_the_unneeded(function: FlatFunction) -> FlatFunction:
    """Leaves out what no result needs and nothing has to run for."""
    operations = function.operations
    doers = _doers(operations, function.num_arguments)
    needed = set(range(function.num_arguments))
    stack = [output.node for output in function.outputs]
    stack += [doer for number in function.controls for doer in doers[number]]
    while stack:
        number = stack.pop()
        if number in needed:
            continue
        needed.add(number)
        operation = operations[number]
        stack += [output.node for output in operation.inputs]
        stack += [d for earlier in operation.controls for d in doers[earlier]]

    new = Renumbering()

    def still_there(controls: Sequence[int]) -> tuple[int, ...]:
        return new.controls(
            one
            for number in controls
            for one in ((number,) if number in needed else doers[number])
            if one >= function.num_arguments
        )

    for number, operation in enumerate(operations):
        if number in needed:
            new.keep(
                number,
                FlatOperation(
                    operation.operation,
                    new.outputs(operation.inputs),
                    still_there(operation.controls),
                    operation.device,
                ),
            )
    return FlatFunction(
        new.kept,
        function.num_arguments,
        new.outputs(function.outputs),
        still_there(function.controls),
    )


def _doers(
    operations: Sequence[FlatOperation], num_arguments: int
) -> list[tuple[int, ...]]:
    """What is really waited for by whoever runs after each operation.

    That is the operation itself; or, if it does nothing, those before it.
    """
    doers: list[tuple[int, ...]] = []
    for number, operation in enumerate(operations):
        if number < num_arguments:
            doers.append(())
        elif operation.operation.type in _DO_NOTHING:
            before = [output.node for output in operation.inputs]
            before += operation.controls
            doers.append(
                tuple(dict.fromkeys(d for one in before for d in doers[one]))
            )
        else:
            doers.append((number,))
    return doers
