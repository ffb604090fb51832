"""Makes `table.assign(f(table))` of a sharded variable lose nothing."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.methods import self_computation
from tfps_plugin.variables.methods.self_computation import Computation
from tfps_plugin.variables.step_trace import StepTrace


def parts(
    table: Any, method: str, value: Any
) -> tuple[str, list[tf.Tensor]] | None:
    """Returns each shard's part of a value computed from the whole table.

    `mean.assign(mean * 0.9 + x * 0.1)` of a sharded variable becomes the same
    assignment of every shard, with its rows of `x`; `self_assignment` does the
    rest.

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
