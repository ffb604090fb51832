"""Makes `variable.assign(f(variable))` lose nothing on a parameter server.

Layers write `mean.assign(mean * momentum + x * (1 - momentum))` and
`seen.assign(seen + 1)`. Taken literally, a worker would read, compute and
assign, and lose whatever others had assigned meanwhile. Here the ps computes
instead: it reads the variable again, repeats the computation, and assigns, all
under the variable's lock. The worker computes and sends whatever does not
depend on the variable.

A program that runs alone gets the same numbers, to the bit. A table that is cut
is assigned in the same way, shard by shard.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.compression import wire
from tfps_plugin.variables.methods import self_computation
from tfps_plugin.variables.methods.self_computation import Computation
from tfps_plugin.variables.step_trace import StepTrace


def assign(variable: Any, value: Any) -> tf.Operation | None:
    """Assigns a value that was computed from the variable itself.

    The assignment is atomic with other such assignments and with updates
    under the variable's lock. Plain additions (`assign_add`, and `v + x` and
    `v - x` here) are atomic among themselves and with reads. Additions to a
    table hold the lock; others take none, so do not mix them with other
    self-assignments of the same variable.

    Args:
        variable: A `RemoteVariable`.
        value: The value to assign.

    Returns:
        The operation that assigns. None if the caller has to assign the value
        as it is: outside of functions, in an update that holds a lock already,
        and if `value` is not made from a read of the variable in the same
        function by a few elementwise operations.
    """
    if not _is_computed_here(variable, value):
        return None
    handle = compat.in_graph(variable.handle, value.graph)
    found = Computation.find(value, handle)
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
    """Adds or subtracts a value that was computed from a state itself.

    `mean.assign_add(rate * (x - mean))` is `mean.assign(mean + ...)`: the
    addend has to be computed from the value that it is added to. A weight gets
    the addend as it is: gradients belong to earlier values.

    Args:
        variable: A `RemoteVariable`.
        delta: The value to add or subtract.
        operation: `tf.add` or `tf.subtract`.

    Returns:
        As `assign`.
    """
    if variable.trainable or not _is_computed_here(variable, delta):
        return None
    handle = compat.in_graph(variable.handle, delta.graph)
    if Computation.find(delta, handle) is None:
        return None
    return assign(variable, operation(variable.read_value(), delta))


def _is_computed_here(variable: Any, value: Any) -> bool:
    """Returns whether the ps could compute a value in place of the worker."""
    return (
        variable.update_lock is not None
        and compat.function_graph() is not None
        and not StepTrace.current().holds_a_lock
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

    The gradient depends on the weight as the step has read it. Others may have
    changed the weight since; their changes are kept.

    Args:
        variable: The weight.
        value: The value to assign.
        handle: The weight's handle in the function.

    Returns:
        The operation; None if the value is not of this form.
    """
    last = self_computation.behind_identities(value).op
    if not variable.trainable or last.type not in (
        *self_computation.ADDITIONS,
        "Sub",
    ):
        return None
    users = handle.consumers()
    reads = [user for user in users if user.type == "ReadVariableOp"]
    dependents = self_computation.dependents_of(reads) or set()
    left, right = last.inputs
    subtracts = last.type == "Sub"
    for own, addend in ((left, right), (right, left)):
        read = self_computation.behind_identities(own).op
        is_read = read in reads or (
            wire.is_received(read) and read.name in dependents
        )
        if not is_read or (subtracts and own is right):
            continue
        changes = [
            user for user in users if user.type not in self_computation.READS
        ]
        if changes and not self_computation.all_before(changes, [read]):
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
    """Returns the addend if a value is the variable itself plus an addend.

    Args:
        variable: A variable that functions read by its `handle`.
        value: The value to assign.

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
    found = Computation.find(value, compat.in_graph(variable.handle, graph))
    delta = None if found is None else found.as_addition()
    if delta is None:
        return None
    method, addend = delta
    return addend if method is tf.raw_ops.AssignAddVariableOp else -addend


def others_of(variable: Any, value: Any) -> list[tf.Tensor] | None:
    """Returns what a value is computed from besides the variable itself.

    Args:
        variable: A variable, or a sharded one, that functions read.
        value: The value to assign, a tensor of the present function.

    Returns:
        Tensors that do not depend on the variable; None if the value is not
        made from a read of it by a few elementwise operations.
    """
    shards = getattr(variable, "variables", None)
    handles = [
        compat.in_graph(shard.handle, value.graph)
        for shard in (shards or [variable])
    ]
    found = Computation.find_of_shards(
        value, handles, _wholes(handles) if shards else ()
    )
    return None if found is None else [*found.inputs.values()]


def parts_of_shards(
    table: Any, method: str, value: Any
) -> tuple[str, list[tf.Tensor]] | None:
    """Returns each shard's part of a value computed from the whole table.

    `mean.assign(mean * 0.9 + x * 0.1)` of a sharded variable becomes the same
    assignment of every shard, with its rows of `x`; `assign` does the rest.

    Args:
        table: A sharded variable.
        method: `"assign"`, `"assign_add"` or `"assign_sub"`.
        value: The argument of the method.

    Returns:
        The method to call on the shards, and its argument for each; None
        if the value is to be split as it is.
    """
    graph = tf.compat.v1.get_default_graph()
    if (
        compat.function_graph() is None
        or StepTrace.current().holds_a_lock
        or not isinstance(value, tf.Tensor)
        or not tf.is_symbolic_tensor(value)
        or value.graph is not graph
    ):
        return None
    handles = [compat.in_graph(shard.handle, graph) for shard in table.shards]
    wholes = _wholes(handles)
    if method == "assign" and table.trainable:
        last = self_computation.behind_identities(value).op
        if last.type in (*self_computation.ADDITIONS, "Sub"):
            left, right = last.inputs
            if self_computation.behind_identities(left).op.name in wholes:
                subtracts = last.type == "Sub"
                method = "assign_sub" if subtracts else "assign_add"
                return method, [
                    tf.broadcast_to(part, shard.shape)
                    for part, shard in zip(
                        _cut(table, right), table.shards, strict=True
                    )
                ]
    found = Computation.find_of_shards(value, handles, wholes)
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
    """Returns the operations of a function that join all shards."""
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
                # The results of a function with a custom gradient.
                found |= {
                    one.name
                    for one in user.outputs[0].consumers()
                    if one.type == "IdentityN"
                }
    return found


def _handles_of(joined: tf.Operation) -> list[int]:
    """Returns ids of the handles whose values a concatenation of rows joins."""
    *parts, axis = joined.inputs
    if tf.get_static_value(axis) != 0:
        return []
    reads = [self_computation.behind_identities(part).op for part in parts]
    if any(read.type != "ReadVariableOp" for read in reads):
        return []
    return [id(read.inputs[0]) for read in reads]


def _cut(table: Any, value: tf.Tensor) -> list[tf.Tensor]:
    """Returns the parts of a value that correspond to the shards' rows."""
    num_shards = table.layout.num_shards
    if value.shape.rank != table.shape.rank or value.shape[0] == 1:
        return [value] * num_shards
    rows = [table.layout.rows(index) for index in range(num_shards)]
    return [value[each.start : each.stop] for each in rows]
