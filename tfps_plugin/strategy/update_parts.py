"""Parts of an update of a variable, one for each parameter server."""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.variables.compression import wire
from tfps_plugin.variables.dynamic import found_order
from tfps_plugin.variables.dynamic.found_order import FoundOrder
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows
from tfps_plugin.variables.lookup.distinct_rows import distinct
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.step_trace import View
from tfps_plugin.variables.updates import views
from tfps_plugin.variables.updates.update_part import UpdatePart


def parts_of(
    variable: Any, args: Sequence[Any], *, exact: bool
) -> list[UpdatePart]:
    """Cuts an update into parts.

    Args:
        variable: A variable of this strategy, or any `tf.Variable`.
        args: Arguments of the update function after the variable; usually the
            gradient comes first.
        exact: Whether a sparse gradient updates the whole variable, as in
            Keras, instead of the touched rows.

    Returns:
        One part per shard, even for a shard without touched rows.

    Raises:
        UnsupportedError: If a sparse argument comes together with another
            that has the shape of the whole variable.
    """
    if not isinstance(variable, ShardedVariable | RemoteVariable):
        return [UpdatePart(variable, variable.device, tuple(args))]
    position = _sparse_position(variable, args)
    if position is None:
        return [
            _whole_part(variable, index, shard, args, rows)
            for index, shard, rows in _shards(variable)
        ]
    slices = distinct(args[position])
    all_values = tf.convert_to_tensor(slices.values)
    local_ids, values = slices.split_by_shard(
        variable.layout,
        wire.narrowed(
            all_values, _wire_dtype(variable, all_values), stochastic=True
        ),
    )
    lookups = variable.lookups_of_steps
    behind = lookups and lookups.behind(
        slices.order_by(variable.layout), len(local_ids)
    )
    parts = []
    for index, shard, rows in _shards(variable):
        # Built on the ps, so that each tensor travels once.
        with tf.device(shard.device):
            mine = DistinctRows(
                wire.widened(
                    tf.identity(values[index]),
                    slices.dtype,
                    wire.width_of(variable),
                ),
                tf.identity(local_ids[index]),
            )
        if exact:
            part = _whole_part(
                variable, index, shard, _but(args, position, 0.0), rows
            )
            see = functools.partial(
                _seeing_all, shard.shape, mine.values, position
            )
        else:
            part = _rows_part(
                variable, shard, _but(args, position, mine.values)
            )
            see = functools.partial(_seeing_rows, variable, index, rows)
        if behind:
            part = _seeing_later(part, see, mine, behind, index)
        else:
            part = see(mine.indices, part)
        parts.append(part)
    return parts


def _shards(variable: Any) -> list[tuple[int, RemoteVariable, range | None]]:
    """Returns the shards that the function may update.

    Returns:
        For each the number, the shard, and its rows among those of a gradient;
        None for a variable in one piece.
    """
    only_on = StepTrace.current().only_on
    if not isinstance(variable, ShardedVariable):
        if only_on not in (None, variable.device):
            return []
        return [(0, variable, None)]
    if only_on is None:
        return [
            (index, shard, variable.layout.rows(index))
            for index, shard in enumerate(variable.variables)
        ]
    found: list[tuple[int, RemoteVariable, range | None]] = []
    num_rows = 0
    for index, shard in enumerate(variable.variables):
        if shard.device == only_on:
            end = num_rows + shard.shape[0]
            found.append((index, shard, range(num_rows, end)))
            num_rows = end
    return found


def _whole_part(
    variable: Any,
    index: int,
    shard: RemoteVariable,
    args: Sequence[Any],
    rows: range | None,
) -> UpdatePart:
    local = [
        _on_ps(variable, _rows_of(variable, argument, rows), shard.device)
        for argument in args
    ]
    seen: dict[str, View] = {}
    if rows is not None:
        seen = {
            container._unique_id: views.ShardView(container.variables[index])
            for container in (
                variable,
                *variable.family,
                *_containers_among(variable, args),
            )
        }
    return UpdatePart(
        variable,
        shard.device,
        tuple(local),
        seen,
        shard.update_lock,
        shard=shard,
    )


def _but(args: Sequence[Any], position: int, argument: Any) -> list[Any]:
    """Returns arguments with another one at a position."""
    return [*args[:position], argument, *args[position + 1 :]]


def _seeing_all(
    shape: tf.TensorShape,
    values_UD: tf.Tensor,
    position: int,
    ids_U: tf.Tensor,
    part: UpdatePart,
) -> UpdatePart:
    """Returns a part with the dense gradient of its shard."""
    with tf.device(part.device):
        dense = tf.math.unsorted_segment_sum(values_UD, ids_U, shape[0])
        dense.set_shape(shape)
    # Not cut, as arguments of the whole variable are: it already is.
    return dataclasses.replace(
        part, args=tuple(_but(part.args, position, dense))
    )


def _rows_part(
    variable: Any, shard: RemoteVariable, args: Sequence[Any]
) -> UpdatePart:
    local = [_on_ps(variable, argument, shard.device) for argument in args]
    return UpdatePart(
        variable,
        shard.device,
        tuple(local),
        {},
        shard.update_lock,
        is_rows=True,
        shard=shard,
    )


def _seeing_rows(
    variable: Any,
    index: int,
    rows: range | None,
    ids_U: tf.Tensor,
    part: UpdatePart,
) -> UpdatePart:
    """Returns a part that sees some rows of its shard and of the slots."""
    seen = {
        member._unique_id: views.RowsView(
            member if rows is None else member.variables[index],
            ids_U,
            is_slot=member is not variable,
        )
        for member in (variable, *variable.family)
    }
    return dataclasses.replace(part, seen=seen, ids_U=ids_U)


def _seeing_later(
    part: UpdatePart,
    see: Callable[[tf.Tensor, UpdatePart], UpdatePart],
    mine: DistinctRows,
    behind: Sequence[FoundOrder],
    index: int,
) -> UpdatePart:
    """Returns a part that sees, under the lock, the rows that ids still have.

    A gradient may come long after its lookup, and its rows have gone to other
    ids since.
    """

    def renew(part: UpdatePart) -> UpdatePart:
        return see(found_order.without_gone(behind, index, mine.indices), part)

    needs = (
        mine.values,
        mine.indices,
        *(each.ids_there[index] for each in behind),
    )
    return dataclasses.replace(part, needs=needs, renew=renew)


def _wire_dtype(variable: Any, argument: tf.Tensor) -> tf.DType | None:
    """Dtype on the wire of an argument of an update; None: its own."""
    if StepTrace.current().only_on is not None:
        # It has traveled already.
        return None
    # A scalar is no gradient but, for example, a learning rate.
    if argument.dtype != variable.dtype or argument.shape.rank == 0:
        return None
    wire_dtype = wire.dtype_for(variable)
    if wire_dtype == tf.int8 and not (
        argument.shape.rank == 2 and argument.shape[1] == variable.shape[1]
    ):
        # int8 needs rows of the variable, which have a scale each.
        return None
    return wire_dtype


def _on_ps(variable: Any, argument: Any, device: str) -> Any:
    if not isinstance(argument, tf.Tensor):
        return argument
    narrow = wire.narrowed(argument, _wire_dtype(variable, argument))
    with tf.device(device):
        return wire.widened(
            tf.identity(narrow), argument.dtype, wire.width_of(variable)
        )


def _sparse_position(variable: Any, args: Sequence[Any]) -> int | None:
    positions = [
        i for i, a in enumerate(args) if isinstance(a, tf.IndexedSlices)
    ]
    if not positions:
        return None
    whole = [
        i
        for i, a in enumerate(args)
        if i not in positions and _has_shape_of(variable, a)
    ]
    if len(positions) > 1 or whole:
        raise errors.UnsupportedError(
            f"An update of single rows of {variable.name!r} expects one sparse "
            "argument and no other of the variable's whole shape. Received: "
            f"{len(positions)} sparse arguments and {len(whole)} of shape "
            f"{tuple(variable.shape)}. Convert the gradient with "
            "tf.convert_to_tensor() to update the whole variable instead."
        )
    return positions[0]


def _containers_among(
    table: ShardedVariable, args: Sequence[Any]
) -> list[ShardedVariable]:
    """Sharded arguments with the table's layout, such as averages."""
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


def _rows_of(variable: Any, argument: Any, rows: range | None) -> Any:
    if rows is None or isinstance(argument, ShardedVariable | keras.Variable):
        return argument
    if StepTrace.current().only_on is not None:
        if not isinstance(argument, tf.Tensor) or argument.shape.rank == 0:
            return argument
        return argument[rows.start : rows.stop]
    if _has_shape_of(variable, argument):
        # The static shape of a gradient may be incomplete.
        whole = tf.ensure_shape(argument, variable.shape)
        return whole[rows.start : rows.stop]
    return argument


def _has_shape_of(variable: Any, argument: Any) -> bool:
    shape = getattr(argument, "shape", None)
    if shape is None or len(variable.shape) == 0:
        return False
    shape = tf.TensorShape(shape)
    return shape.rank is not None and shape.is_compatible_with(variable.shape)
