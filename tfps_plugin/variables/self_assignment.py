"""Makes `variable.assign(f(variable))` lose nothing on a parameter server.

Layers write `mean.assign(mean * momentum + x * (1 - momentum))` and
`seen.assign(seen + 1)`. As the program says it, a worker reads, computes and
assigns, and whatever others have assigned meanwhile is lost. Here the ps
computes instead: it reads the variable again, does what the worker did, and
assigns, all under the variable's lock. What does not depend on the variable
is computed by the worker and sent.

A program that runs alone gets the same numbers, to the bit.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.variables import update_lock
from tfps_plugin.variables import wire

# What is computed on the ps again: one element of the result for each of the
# variable's, and no state. By the names that TensorFlow gives its operations.
_REPEATED = frozenset(
    [
        *("Identity", "StopGradient", "Cast"),
        *("Add", "AddV2", "Sub", "Mul", "Div", "RealDiv", "DivNoNan"),
        # What keras.ops.add makes of an addition to every row.
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
# Longer computations are not those of a moving average or a counter, and
# would keep the lock for long.
_MOST_OPERATIONS = 32
# How far is looked for what depends on the variable.
_MOST_DEPENDENTS = 20_000

_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")
_ADDITIONS = ("Add", "AddV2")


def assign(variable: Any, value: Any) -> tf.Operation | None:
    """Assigns what was computed from the variable itself, if it was.

    The assignment is atomic with other such assignments and with updates
    under the variable's lock. Plain additions (`assign_add`, and `v + x` and
    `v - x` here) are atomic among themselves and with reads; those of a table
    hold the lock. Others take none: do not mix them with other
    self-assignments of the same variable.

    Args:
        variable: A `RemoteVariable`.
        value: What it is to be assigned.

    Returns:
        The operation that assigns. None if there is nothing to do other than
        what the program says: outside of functions, in an update that holds
        a lock already, and if `value` is not made from a read of the variable
        in the same function by a few elementwise operations.
    """
    graph = tf.compat.v1.get_default_graph()
    if (
        variable.update_lock is None
        or compat.function_graph() is None
        or update_lock.any_held()
        or not isinstance(value, tf.Tensor)
        or not tf.is_symbolic_tensor(value)
        or value.graph is not graph
        or value.dtype != variable.dtype
        or not variable.shape.is_compatible_with(value.shape)
    ):
        return None
    found = _Computation.find(value, compat.in_graph(variable.handle, graph))
    if found is None:
        return None
    with tf.device(variable.device), compat.stop_recording():
        delta = found.as_addition()
        if delta is not None:
            method, addend = delta
            addend = tf.broadcast_to(addend, variable.shape)
            with variable.beside_steps(addend) as addend:
                return method(resource=variable.handle, value=addend)
        given = {
            index: tf.identity(tensor) for index, tensor in found.inputs.items()
        }
        with variable.update_lock.holding(after=list(given.values())):
            now = tf.raw_ops.ReadVariableOp(
                resource=variable.handle, dtype=variable.dtype
            )
            return tf.raw_ops.AssignVariableOp(
                resource=variable.handle,
                value=found.repeat(now, given),
                validate_shape=True,
            )


def as_addition(variable: Any, value: Any) -> tf.Tensor | None:
    """What is added, if a value is a variable's own and something more.

    Args:
        variable: A variable whose `handle` functions read it by.
        value: What it is to be assigned.

    Returns:
        The addend; None outside of functions, and for any other value.
    """
    graph = tf.compat.v1.get_default_graph()
    if (
        compat.function_graph() is None
        or not isinstance(value, tf.Tensor)
        or not tf.is_symbolic_tensor(value)
        or value.graph is not graph
    ):
        return None
    found = _Computation.find(value, compat.in_graph(variable.handle, graph))
    delta = None if found is None else found.as_addition()
    if delta is None:
        return None
    method, addend = delta
    return addend if method is tf.raw_ops.AssignAddVariableOp else -addend


class _Computation:
    """How a value was computed from reads of one variable.

    Attributes:
        inputs: What does not depend on the variable, by the tensor's `id`.
    """

    def __init__(self, value: tf.Tensor) -> None:
        """Starts at the end; `find` makes complete ones."""
        self._value = value
        self._reads: dict[int, tf.Tensor] = {}
        # Each after those that it depends on.
        self._steps: list[tf.Operation] = []
        self.inputs: dict[int, tf.Tensor] = {}

    @classmethod
    def find(cls, value: tf.Tensor, handle: tf.Tensor) -> "_Computation | None":
        """Walks back from `value` to reads of the variable.

        Args:
            value: A tensor of a function.
            handle: The variable's handle in that function.

        Returns:
            None if `value` does not depend on the variable, or in another way
            than by elementwise operations, or if the variable was changed
            between the reads and now: those reads are of a value that is
            gone.
        """
        users = handle.consumers()
        reads = [user for user in users if user.type == "ReadVariableOp"]
        if not reads:
            return None
        dependents = _dependents(reads)
        if dependents is None or value.op.name not in dependents:
            return None
        found = cls(value)
        if not found._walk(dependents):
            return None
        changes = [user for user in users if user.type not in _READS]
        if changes and not _all_before(
            changes, [read.op for read in found._reads.values()]
        ):
            return None
        return found

    def _walk(self, dependents: set[str]) -> bool:
        """Fills in the steps; False if one of them cannot be repeated."""
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
            if operation.type == "ReadVariableOp" or wire.is_received(
                operation
            ):
                # Of the variable: a read of another depends on nothing. The ps
                # computes with what it has, not with what travelled.
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
        """How one atomic operation does the same.

        Returns:
            The operation and what it adds or subtracts, if the value is
            `variable + x`, `x + variable` or `variable - x`.
        """
        last = _behind_identities(self._value).op
        if last.type == "BiasAdd":
            if last.get_attr("data_format") != b"NHWC":
                return None
        elif last.type not in (*_ADDITIONS, "Sub"):
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
        return id(_behind_identities(tensor)) in self._reads

    def repeat(self, now: tf.Tensor, given: dict[int, tf.Tensor]) -> tf.Tensor:
        """Computes the value anew.

        Args:
            now: What the variable is now.
            given: What stands for `inputs`, by the same keys.
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


def _dependents(reads: list[tf.Operation]) -> set[str] | None:
    """The names of the operations that reads flow into; None: too many."""
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


def _all_before(
    operations: list[tf.Operation], others: list[tf.Operation]
) -> bool:
    """Whether the program made all of the first before any of the others."""
    place = {
        operation.name: index
        for index, operation in enumerate(others[0].graph.get_operations())
    }
    return max(place[o.name] for o in operations) < min(
        place[o.name] for o in others
    )


def _behind_identities(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type in ("Identity", "StopGradient"):
        tensor = tensor.op.inputs[0]
    return tensor
