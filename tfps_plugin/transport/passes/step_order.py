"""Order of the steps in one iteration of a loop.

As traced, a step begins when the step before it has ended on the worker and on
all parameter servers, each of which has to report back. This pass keeps only
the order that matters: operations on the same variable, and other operations
with effects (such as a print) in the same place, run in the order of the steps.

This is nearly what TensorFlow promises of operations within one function
(automatic control dependencies), and what `loop_overlap` relies on. Two
differences remain. A print on a parameter server and a print on the worker may
change places. And if an assertion fails in one step, a later step of the same
iteration may already have changed variables elsewhere.
"""

import collections
import dataclasses
from collections.abc import Hashable
from collections.abc import Iterator
from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_graphs as compat
from tfps_plugin.transport.flat_function import FlatFunction
from tfps_plugin.transport.flat_function import FlatOperation
from tfps_plugin.transport.sections import GIVES_BACK_LOCK
from tfps_plugin.transport.waves import Output

# Operations that read a variable, and change nothing.
_LOOK = frozenset(
    {
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VarIsInitializedOp",
        "VariableShape",
    }
)


class _Users:
    """Operations of the latest steps that have used one resource or place."""

    def __init__(self) -> None:
        self._step = 0
        # Operations of the latest step, and those of earlier steps that matter.
        self._now: tuple[list[int], list[int]] = ([], [])
        self._changed: list[int] = []
        self._looked: list[int] = []

    def before(self, step: int, looks: bool) -> list[int]:
        """Returns the operations that a use in a step has to wait for."""
        if step != self._step:
            changed, looked = self._now
            if changed:
                self._changed, self._looked = changed, looked
            else:
                self._looked = [*self._looked, *looked]
            self._step, self._now = step, ([], [])
        return list(self._changed) if looks else self._changed + self._looked

    def add(self, number: int, looks: bool) -> None:
        """Records a use in the latest step."""
        self._now[looks].append(number)


def in_order(
    function: FlatFunction, places: Sequence[str | None]
) -> FlatFunction:
    """Makes steps wait for each other where they have to.

    Args:
        function: Inlined with its steps apart.
        places: The places that its operations run in.

    Returns:
        The function. Operations that change a variable run after its uses in
        earlier steps, and reads run after its changes in earlier steps.
    """
    users: dict[Hashable, _Users] = collections.defaultdict(_Users)
    operations = list(function.operations)
    for number, flat in enumerate(operations):
        if not flat.step or not compat.is_stateful(flat.operation):
            continue
        looks = flat.operation.type in _LOOK
        controls = dict.fromkeys(flat.controls)
        for thing in _things(function, flat, places[number]):
            controls.update(
                dict.fromkeys(users[thing].before(flat.step, looks))
            )
            users[thing].add(number, looks)
        operations[number] = dataclasses.replace(flat, controls=tuple(controls))
    return dataclasses.replace(function, operations=operations)


def _things(
    function: FlatFunction, flat: FlatOperation, place: str | None
) -> Iterator[Hashable]:
    """Yields what an operation uses: variables, or else its place."""
    if flat.operation.type == GIVES_BACK_LOCK:
        # It waits for its own section only; the next section waits for it.
        return
    tensors = flat.operation.inputs
    resources = [
        _origin(function, output)
        for output, tensor in zip(flat.inputs, tensors, strict=True)
        if tensor.dtype == tf.resource
    ]
    yield from dict.fromkeys(r for r in resources if r is not None)
    if (
        not resources
        or None in resources
        or compat.runs_functions(flat.operation)
    ):
        yield place


def _origin(function: FlatFunction, output: Output) -> Output | None:
    """Returns the argument that a resource is; None if it is not one."""
    while output.node >= function.num_arguments:
        flat = function.operations[output.node]
        if flat.operation.type != "Identity":
            return None
        output = flat.inputs[0]
    return output
