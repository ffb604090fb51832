"""Elimination of dead code."""

from collections.abc import Sequence

from tfps_plugin.transport.flat_function import FlatFunction
from tfps_plugin.transport.flat_function import FlatOperation
from tfps_plugin.transport.flat_function import Renumbering

# Operations without effects. If nothing needs their results, they need not run,
# and operations that wait for them wait for their inputs instead.
_DO_NOTHING = frozenset(
    {
        "Const",
        "Identity",
        "IdentityN",
        "NoOp",
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VariableShape",
    }
)


def eliminate(function: FlatFunction) -> FlatFunction:
    """Returns the function without operations that nothing needs.

    Results of the function are needed, and its operations with effects.
    """
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
                    operation.step,
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
    """Returns, for each operation, the operations that successors wait for.

    This is the operation itself or, if it has no effect, those before it.
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
