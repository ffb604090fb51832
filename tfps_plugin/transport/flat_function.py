"""The operations of a function as a list."""

import dataclasses
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.transport.waves import Output


@dataclasses.dataclass(slots=True)
class FlatOperation:
    """An operation, and where in the list its inputs come from.

    Attributes:
        operation: As it was traced.
        inputs: What it is given.
        controls: The numbers of those that it runs after.
        device: Where it is to run; empty: on the worker that runs the step.
        step: Of which call of a repeated function it is, counted from 1; 0 if
            of none. See `flatten`.
    """

    operation: tf.Operation
    inputs: tuple[Output, ...]
    controls: tuple[int, ...]
    device: str
    step: int = 0


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


def constant_scalar(operations: Sequence[FlatOperation], output: Output) -> Any:
    """The value of a scalar that is known; else None."""
    operation = operations[output.node].operation
    if operation.type != "Const" or operation.outputs[0].shape.rank != 0:
        return None
    return tf.get_static_value(operation.outputs[0]).item()


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
