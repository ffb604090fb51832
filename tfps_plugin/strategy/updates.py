"""Runs an optimizer's own update where the variable lives.

`tf.distribute.Strategy.extended.update(variable, fn, args)` is how Keras's
optimizers change variables. Here `fn` runs on the parameter server:

- a dense gradient: once for every shard, which sees itself as the variable;
- a sparse one (`tf.IndexedSlices`): on the touched rows only, of the variable
  and of its slots, after repeated ids were summed. Cost follows the rows that
  a batch touched, never the table. For optimizers with momentum this is the
  "lazy" form: rows that were not touched do not decay.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.tensorflow_strategy import UpdateContext
from tfps_plugin.variables import row_gather
from tfps_plugin.variables import views
from tfps_plugin.variables.layout import RowLayout
from tfps_plugin.variables.remote_variable import RemoteVariable
from tfps_plugin.variables.sharded_variable import ShardedVariable


def update(
    variable: Any,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Calls `fn(variable, *args, **kwargs)` on the ps of `variable`.

    Args:
        variable: A variable of this strategy, or any `tf.Variable`.
        fn: Reads and assigns the variable and its slots.
        args: Its further arguments; a gradient usually comes first.
        kwargs: Its keyword arguments.

    Returns:
        What `fn` returns; None for a sharded variable.

    Raises:
        UnsupportedError: If a sparse argument comes together with another
            that has the shape of the whole variable.
    """
    sparse = [a for a in args if isinstance(a, tf.IndexedSlices)]
    if isinstance(variable, ShardedVariable):
        if sparse:
            _update_rows(variable, fn, args, kwargs)
        else:
            _update_shards(variable, fn, args, kwargs)
        return None
    if sparse and isinstance(variable, RemoteVariable):
        return _update_rows(variable, fn, args, kwargs)
    with tf.device(variable.device), UpdateContext(variable.device):
        return fn(variable, *args, **kwargs)


def _update_shards(
    table: ShardedVariable,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> None:
    containers = [table, *table.family, *_containers_among(table, args)]
    for index, shard in enumerate(table.variables):
        rows = table.layout.rows(index)
        seen = {
            container._unique_id: views.ShardView(container.variables[index])
            for container in containers
        }
        shard_args = [_part_for_shard(table, a, rows) for a in args]
        with (
            tf.device(shard.device),
            UpdateContext(shard.device),
            views.viewing(seen),
        ):
            fn(table, *shard_args, **kwargs)


def _update_rows(
    variable: ShardedVariable | RemoteVariable,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    position = _only_sparse_argument(variable, args)
    slices = args[position]
    ids_U, sums_UD = row_gather.sum_by_id(
        tf.convert_to_tensor(slices.indices),
        tf.convert_to_tensor(slices.values),
    )
    family = [variable, *variable.family]
    if isinstance(variable, ShardedVariable):
        layout, shards = variable.layout, variable.variables
        members = [member.variables for member in family]
    else:
        layout = RowLayout((0, variable.shape[0]))
        shards, members = [variable], [[member] for member in family]
    local_ids, (sums,) = row_gather.split_by_shard(layout, ids_U, sums_UD)
    result = None
    for index, shard in enumerate(shards):
        # Built on the ps, so that the ids cross over once.
        with tf.device(shard.device):
            ids = tf.identity(local_ids[index])
        seen = {
            member._unique_id: views.RowsView(parts[index], ids)
            for member, parts in zip(family, members, strict=True)
        }
        shard_args = list(args)
        shard_args[position] = sums[index]
        with (
            tf.device(shard.device),
            UpdateContext(shard.device),
            views.viewing(seen),
        ):
            result = fn(variable, *shard_args, **kwargs)
    return result


def _only_sparse_argument(variable: Any, args: Sequence[Any]) -> int:
    positions = [
        i for i, a in enumerate(args) if isinstance(a, tf.IndexedSlices)
    ]
    whole = [
        i
        for i, a in enumerate(args)
        if i not in positions and _has_shape_of(variable, a)
    ]
    if len(positions) > 1 or whole:
        raise errors.UnsupportedError(
            f"An update of single rows of {variable.name!r} takes one sparse "
            "argument and no other of the variable's whole shape. Received: "
            f"{len(positions)} sparse arguments and {len(whole)} of shape "
            f"{tuple(variable.shape)}. Convert the gradient with "
            "tf.convert_to_tensor() to update the whole variable instead."
        )
    return positions[0]


def _containers_among(
    table: ShardedVariable, args: Sequence[Any]
) -> list[ShardedVariable]:
    """Sharded arguments that are cut as the table is, such as averages."""
    found = []
    for argument in args:
        value = (
            argument.value if isinstance(argument, keras.Variable) else argument
        )
        if (
            isinstance(value, ShardedVariable)
            and value is not table
            and value.layout == table.layout
        ):
            found.append(value)
    return found


def _part_for_shard(table: ShardedVariable, argument: Any, rows: range) -> Any:
    if isinstance(argument, ShardedVariable | keras.Variable):
        return argument
    if _has_shape_of(table, argument):
        return argument[rows.start : rows.stop]
    return argument


def _has_shape_of(variable: Any, argument: Any) -> bool:
    shape = getattr(argument, "shape", None)
    return (
        shape is not None
        and len(variable.shape) > 0
        and tuple(shape) == tuple(variable.shape)
    )
