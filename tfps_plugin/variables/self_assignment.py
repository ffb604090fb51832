"""Makes `variable.assign(f(variable))` lose nothing on a parameter server.

Layers write `mean.assign(mean * momentum + x * (1 - momentum))` and
`seen.assign(seen + 1)`. As the program says it, a worker reads, computes and
assigns, and whatever others have assigned meanwhile is lost. Here the ps
computes instead: it reads the variable again, does what the worker did, and
assigns, all under the variable's lock. What does not depend on the variable
is computed by the worker and sent.

A program that runs alone gets the same numbers, to the bit.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
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
    if not _is_computed_here(variable, value):
        return None
    handle = compat.in_graph(variable.handle, value.graph)
    found = _Computation.find(value, handle)
    if found is None:
        return _descend(variable, value, handle)
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


def change(
    variable: Any, delta: Any, operation: Callable[..., tf.Tensor]
) -> tf.Operation | None:
    """Adds or subtracts what was computed from a state itself, if it was.

    `mean.assign_add(rate * (x - mean))` is `mean.assign(mean + ...)`: what is
    added has to belong to the value that it is added to. To a weight, as much
    is added as the program says: gradients are of earlier values.

    Args:
        variable: A `RemoteVariable`.
        delta: What is to be added or subtracted.
        operation: `tf.add` or `tf.subtract`.

    Returns:
        As `assign`.
    """
    if variable.trainable or not _is_computed_here(variable, delta):
        return None
    handle = compat.in_graph(variable.handle, delta.graph)
    if _Computation.find(delta, handle) is None:
        return None
    return assign(variable, operation(variable.read_value(), delta))


def _is_computed_here(variable: Any, value: Any) -> bool:
    """Whether the ps could compute a value in the place of the worker."""
    return (
        variable.update_lock is not None
        and compat.function_graph() is not None
        and not update_lock.any_held()
        and isinstance(value, tf.Tensor)
        and tf.is_symbolic_tensor(value)
        and value.graph is tf.compat.v1.get_default_graph()
        and value.dtype == variable.dtype
        and variable.shape.is_compatible_with(value.shape)
    )


def _descend(
    variable: Any, value: tf.Tensor, handle: tf.Tensor
) -> tf.Operation | None:
    """Adds to a weight what `weight.assign(weight - rate * gradient)` adds.

    The gradient depends on the weight, as it was when the step read it; others
    may have changed the weight since, and that is to stay.

    Args:
        variable: The weight.
        value: What it is to be assigned.
        handle: The weight's handle in the function.

    Returns:
        The operation; None if the value is no such sum.
    """
    last = _behind_identities(value).op
    if not variable.trainable or last.type not in (*_ADDITIONS, "Sub"):
        return None
    users = handle.consumers()
    reads = [user for user in users if user.type == "ReadVariableOp"]
    dependents = _dependents(reads) or set()
    left, right = last.inputs
    subtracts = last.type == "Sub"
    for own, addend in ((left, right), (right, left)):
        read = _behind_identities(own).op
        is_read = read in reads or (
            wire.is_received(read) and read.name in dependents
        )
        if not is_read or (subtracts and own is right):
            continue
        changes = [user for user in users if user.type not in _READS]
        if changes and not _all_before(changes, [read]):
            return None
        method = (
            tf.raw_ops.AssignSubVariableOp
            if subtracts
            else tf.raw_ops.AssignAddVariableOp
        )
        with tf.device(variable.device), compat.stop_recording():
            addend = tf.broadcast_to(addend, variable.shape)
            with variable.beside_steps(addend) as addend:
                return method(resource=variable.handle, value=addend)
    return None


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


def of_shards(
    table: Any, method: str, value: Any
) -> tuple[str, list[tf.Tensor]] | None:
    """What each shard is assigned, if that was computed from the whole table.

    `mean.assign(mean * 0.9 + x * 0.1)` of a variable that is cut is the same of
    every shard with its rows of `x`; as such, `assign` finds it.

    Args:
        table: A sharded variable.
        method: `"assign"`, `"assign_add"` or `"assign_sub"`.
        value: What it is given.

    Returns:
        The method to call on the shards, and its argument for each; None
        where the value is to be cut as it is.
    """
    graph = tf.compat.v1.get_default_graph()
    if (
        compat.function_graph() is None
        or update_lock.any_held()
        or not isinstance(value, tf.Tensor)
        or not tf.is_symbolic_tensor(value)
        or value.graph is not graph
    ):
        return None
    handles = [compat.in_graph(shard.handle, graph) for shard in table.shards]
    wholes = _wholes(handles)
    if method == "assign" and table.trainable:
        last = _behind_identities(value).op
        if last.type in (*_ADDITIONS, "Sub"):
            left, right = last.inputs
            if _behind_identities(left).op.name in wholes:
                subtracts = last.type == "Sub"
                method = "assign_sub" if subtracts else "assign_add"
                return method, [
                    tf.broadcast_to(part, shard.shape)
                    for part, shard in zip(
                        _cut(table, right), table.shards, strict=True
                    )
                ]
    found = _Computation.find_of_shards(value, handles, wholes)
    if found is None:
        return None
    given = {key: _cut(table, each) for key, each in found.inputs.items()}
    return method, [
        found.repeat(
            shard.read_value(), {key: parts[n] for key, parts in given.items()}
        )
        for n, shard in enumerate(table.shards)
    ]


def _wholes(handles: Sequence[tf.Tensor]) -> set[str]:
    """The operations of a function that give all shards as one tensor."""
    found: set[str] = set()
    waiting = [t for read in handles[0].consumers() for t in read.outputs]
    while waiting:
        for user in waiting.pop().consumers():
            if user.type in ("Identity", "StopGradient", "IdentityN"):
                waiting.append(user.outputs[0])
            elif user.type == "ConcatV2" and _handles_of(user) == [
                id(handle) for handle in handles
            ]:
                found.add(user.name)
                # What a function with a gradient of its own returns.
                found |= {
                    one.name
                    for one in user.outputs[0].consumers()
                    if one.type == "IdentityN"
                }
    return found


def _handles_of(joined: tf.Operation) -> list[int]:
    """The ids of the handles whose values a concatenation along rows joins."""
    *parts, axis = joined.inputs
    if tf.get_static_value(axis) != 0:
        return []
    reads = [_behind_identities(part).op for part in parts]
    if any(read.type != "ReadVariableOp" for read in reads):
        return []
    return [id(read.inputs[0]) for read in reads]


def _cut(table: Any, value: tf.Tensor) -> list[tf.Tensor]:
    """The parts of a value that meet the rows of each shard."""
    num_shards = table.layout.num_shards
    if value.shape.rank != table.shape.rank or value.shape[0] == 1:
        return [value] * num_shards
    rows = [table.layout.rows(index) for index in range(num_shards)]
    return [value[each.start : each.stop] for each in rows]


class _Computation:
    """How a value was computed from reads of one variable.

    Attributes:
        inputs: What does not depend on the variable, by the tensor's `id`.
    """

    def __init__(self, value: tf.Tensor, wholes: Collection[str] = ()) -> None:
        """Starts at the end; `find` makes complete ones.

        Args:
            value: The end.
            wholes: Names of operations that give what the variable holds,
                beside those that read it.
        """
        self._value = value
        self._wholes = wholes
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
        return cls.find_of_shards(value, [handle], ())

    @classmethod
    def find_of_shards(
        cls,
        value: tf.Tensor,
        handles: Sequence[tf.Tensor],
        wholes: Collection[str],
    ) -> "_Computation | None":
        """Walks back likewise, from what was computed from several shards.

        Args:
            value: A tensor of a function.
            handles: The handles of the shards in that function.
            wholes: Names of operations that give all shards as one.
        """
        users = [user for handle in handles for user in handle.consumers()]
        reads = [user for user in users if user.type == "ReadVariableOp"]
        if not reads:
            return None
        dependents = _dependents(reads)
        if dependents is None or value.op.name not in dependents:
            return None
        found = cls(value, wholes)
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
            if (
                operation.type == "ReadVariableOp"
                or operation.name in self._wholes
                or wire.is_received(operation)
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
