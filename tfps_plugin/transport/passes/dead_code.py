"""What of a function has to run."""

from collections.abc import Sequence

from tfps_plugin.transport.flat_function import FlatFunction
from tfps_plugin.transport.flat_function import FlatOperation
from tfps_plugin.transport.flat_function import Renumbering

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
        "ResourceGatherNd",
        "VariableShape",
    }
)


def eliminate(function: FlatFunction) -> FlatFunction:
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
