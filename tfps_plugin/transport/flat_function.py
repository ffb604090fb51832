"""A function as a list of operations."""

import dataclasses
from collections.abc import Iterable

import tensorflow as tf

from tfps_plugin.transport.waves import Output


@dataclasses.dataclass(slots=True)
class FlatOperation:
    """An operation, and the places in the list that its inputs come from.

    Attributes:
        operation: The operation as it was traced.
        inputs: The outputs that it reads.
        controls: The numbers of the operations that it runs after.
        device: Its device; empty for the worker that runs the step.
        step: The call of a repeated function that it belongs to, counted from
            1; 0 if it belongs to none. See `inlining.flatten`.
        deferred: The numbers of operations that it need not run after, but
            effects that depend on it must. See `deferred_controls`.
    """

    operation: tf.Operation
    inputs: tuple[Output, ...]
    controls: tuple[int, ...]
    device: str
    step: int = 0
    deferred: tuple[int, ...] = ()


@dataclasses.dataclass(slots=True)
class FlatFunction:
    """The operations of a function in topological order.

    Attributes:
        operations: First the placeholders of the arguments, in their order.
        num_arguments: Number of arguments.
        outputs: The outputs that the function returns.
        controls: Operations that run even if no output needs them.
    """

    operations: list[FlatOperation]
    num_arguments: int
    outputs: tuple[Output, ...]
    controls: tuple[int, ...]


class Renumbering:
    """Map from the numbers of a list's operations to those of a new list.

    Attributes:
        kept: The operations of the new list.
    """

    def __init__(self) -> None:
        """Begins with an empty list."""
        self.kept: list[FlatOperation] = []
        self._numbers: dict[int, int] = {}

    def keep(self, number: int, operation: FlatOperation) -> None:
        """Appends an operation to the new list, and maps its old number."""
        self._numbers[number] = len(self.kept)
        self.kept.append(operation)

    def replace(self, number: int, new_number: int) -> None:
        """Maps an operation of the old list to one of the new list."""
        self._numbers[number] = new_number

    def outputs(self, outputs: Iterable[Output]) -> tuple[Output, ...]:
        """Returns outputs with their operations' new numbers."""
        return tuple(Output(self._numbers[n], index) for n, index in outputs)

    def controls(self, numbers: Iterable[int]) -> tuple[int, ...]:
        """Returns the new numbers of operations, each once."""
        return tuple(dict.fromkeys(self._numbers[n] for n in numbers))
