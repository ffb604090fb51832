"""Computations of values of a traced function from a variable itself."""

from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.compression import wire

# TensorFlow's names of the operations that the ps can repeat: they have no
# state, and one element of the result for each element of the variable.
_REPEATED = frozenset(
    [
        *("Identity", "StopGradient", "Cast"),
        *("Add", "AddV2", "Sub", "Mul", "Div", "RealDiv", "DivNoNan"),
        # keras.ops.add uses it for an addition to every row.
        "BiasAdd",
        *("FloorDiv", "FloorMod", "MulNoNan", "Pow", "SquaredDifference"),
        *("Maximum", "Minimum", "ClipByValue"),
        *("Abs", "Neg", "Sign", "Square", "Sqrt", "Rsqrt", "Reciprocal"),
        *("Exp", "Expm1", "Log", "Log1p", "Relu", "Sigmoid", "Tanh"),
        *("Floor", "Ceil", "Round", "Rint"),
        *("Less", "LessEqual", "Greater", "GreaterEqual"),
        *("Equal", "NotEqual", "IsFinite", "IsNan", "IsInf"),
        *("LogicalAnd", "LogicalOr", "LogicalNot", "SelectV2"),
    ]
)
# Attributes that do not follow from the inputs.
_ATTRIBUTES = {
    "BiasAdd": ("data_format",),
    "Cast": ("DstT", "Truncate"),
    "Equal": ("incompatible_shape_error",),
    "NotEqual": ("incompatible_shape_error",),
}
# Longer computations are not those of a moving average or a counter, and would
# hold the lock for too long. The mean over eight replicas has about 60.
_MOST_OPERATIONS = 96
# Limit of the search for operations that depend on the variable.
_MOST_DEPENDENTS = 20_000

READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")
ADDITIONS = ("Add", "AddV2")


class Computation:
    """Computation of a value from reads of one variable.

    Attributes:
        inputs: Inputs that do not depend on the variable, by the tensor's
            `id`.
    """

    def __init__(self, value: tf.Tensor, wholes: Collection[str] = ()) -> None:
        """Starts at the end; `find` returns complete computations.

        Args:
            value: The end.
            wholes: Names of operations that return the variable's value, in
                addition to those that read it.
        """
        self._value = value
        self._wholes = wholes
        self._reads: dict[int, tf.Tensor] = {}
        # Each operation comes after those that it depends on.
        self._steps: list[tf.Operation] = []
        self.inputs: dict[int, tf.Tensor] = {}

    @classmethod
    def find(cls, value: tf.Tensor, handle: tf.Tensor) -> "Computation | None":
        """Walks back from `value` to reads of the variable.

        Args:
            value: A tensor of a function.
            handle: The variable's handle in that function.

        Returns:
            None if `value` does not depend on the variable, or does by other
            than elementwise operations, or if the variable was changed after
            the reads, so that they are out of date.
        """
        return cls.find_of_shards(value, [handle], ())

    @classmethod
    def find_of_shards(
        cls,
        value: tf.Tensor,
        handles: Sequence[tf.Tensor],
        wholes: Collection[str],
    ) -> "Computation | None":
        """Walks back likewise, to reads of several shards.

        Args:
            value: A tensor of a function.
            handles: The handles of the shards in that function.
            wholes: Names of operations that return all shards as one tensor.
        """
        users = [user for handle in handles for user in handle.consumers()]
        reads = [user for user in users if user.type == "ReadVariableOp"]
        if not reads:
            return None
        dependents = dependents_of(reads)
        if dependents is None or value.op.name not in dependents:
            return None
        found = cls(value, wholes)
        if not found._walk(dependents):
            return None
        changes = [user for user in users if user.type not in READS]
        if changes and not all_before(
            changes, [read.op for read in found._reads.values()]
        ):
            return None
        return found

    def _walk(self, dependents: set[str]) -> bool:
        """Fills in the steps; returns False if one cannot be repeated."""
        waiting = [self._value.op]
        begun: set[str] = set()
        ended: set[str] = set()
        while waiting:
            operation = waiting[-1]
            if operation.name in ended:
                waiting.pop()
                continue
            if operation.name in begun:
                waiting.pop()
                ended.add(operation.name)
                self._steps.append(operation)
                continue
            if (
                operation.type == "ReadVariableOp"
                or operation.name in self._wholes
                or wire.is_received(operation)
            ):
                # It reads this variable: a read of another one depends on
                # nothing. The ps uses its own value, not the one that traveled.
                for read in operation.outputs:
                    self._reads[id(read)] = read
                ended.add(operation.name)
                continue
            begun.add(operation.name)
            if operation.type not in _REPEATED or len(begun) > _MOST_OPERATIONS:
                return False
            for tensor in operation.inputs:
                if tensor.op.name in dependents:
                    waiting.append(tensor.op)
                else:
                    self.inputs[id(tensor)] = tensor
        return True

    def as_addition(self) -> tuple[Any, tf.Tensor] | None:
        """Returns an atomic operation that does the same, if there is one.

        Returns:
            The operation and what it adds or subtracts, if the value is
            `variable + x`, `x + variable` or `variable - x`.
        """
        last = behind_identities(self._value).op
        if last.type == "BiasAdd":
            if last.get_attr("data_format") != b"NHWC":
                return None
        elif last.type not in (*ADDITIONS, "Sub"):
            return None
        left, right = last.inputs
        subtracts = last.type == "Sub"
        if self._is_variable(left) and id(right) in self.inputs:
            method = (
                tf.raw_ops.AssignSubVariableOp
                if subtracts
                else tf.raw_ops.AssignAddVariableOp
            )
            return method, right
        if (
            not subtracts
            and self._is_variable(right)
            and id(left) in self.inputs
        ):
            return tf.raw_ops.AssignAddVariableOp, left
        return None

    def _is_variable(self, tensor: tf.Tensor) -> bool:
        return id(behind_identities(tensor)) in self._reads

    def repeat(self, now: tf.Tensor, given: dict[int, tf.Tensor]) -> tf.Tensor:
        """Computes the value again.

        Args:
            now: The variable's current value.
            given: Replacements for `inputs`, by the same keys.
        """
        made = {**given, **dict.fromkeys(self._reads, now)}
        for step in self._steps:
            arguments = {
                argument.name: made[id(tensor)]
                for argument, tensor in zip(
                    step.op_def.input_arg, step.inputs, strict=True
                )
            }
            for name in _ATTRIBUTES.get(step.type, ()):
                arguments[name] = step.get_attr(name)
            made[id(step.outputs[0])] = getattr(tf.raw_ops, step.type)(
                **arguments
            )
        return made[id(self._value)]


def dependents_of(reads: list[tf.Operation]) -> set[str] | None:
    """Returns the names of operations that depend on reads, if not too many."""
    found = {read.name for read in reads}
    waiting = list(reads)
    while waiting:
        for tensor in waiting.pop().outputs:
            for user in tensor.consumers():
                if user.name not in found:
                    found.add(user.name)
                    waiting.append(user)
        if len(found) > _MOST_DEPENDENTS:
            return None
    return found


def all_before(
    operations: list[tf.Operation], others: list[tf.Operation]
) -> bool:
    """Returns whether all operations were made before any of the others."""
    place = {
        operation.name: index
        for index, operation in enumerate(others[0].graph.get_operations())
    }
    return max(place[o.name] for o in operations) < min(
        place[o.name] for o in others
    )


def behind_identities(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type in ("Identity", "StopGradient"):
        tensor = tensor.op.inputs[0]
    return tensor
