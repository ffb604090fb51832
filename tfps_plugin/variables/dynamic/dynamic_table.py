"""Table whose rows are found by ids of any value.

Shape legend: N ids asked for, U distinct ids among them, S shards, D numbers
in a row.
"""

import uuid
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.dynamic import id_hashing
from tfps_plugin.variables.dynamic.initial_rows import InitialRows
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard_directory import Found
from tfps_plugin.variables.dynamic.shard_directory import ShardDirectory
from tfps_plugin.variables.kinds.sharded_variable import whole_of
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.lookup.shard_order import ShardOrder
from tfps_plugin.variables.lookup.table import Table
from tfps_plugin.variables.lookup.table import table_behind
from tfps_plugin.variables.sharding.layout import RowLayout


class DynamicTable:
    """Rows, their records and the directories of all shards.

    The rows are a variable on parameter servers, or any `tf.Variable` in a
    program of one process.
    """

    def __init__(
        self,
        name: str,
        rows: Any,
        records: Any,
        space: RowSpace,
        initial: InitialRows,
    ) -> None:
        """Joins the variables of a table.

        Args:
            name: Name of the table, for messages.
            rows: The `keras.Variable` of the rows.
            records: That of their records, cut in the same way.
            space: Rows of all buckets.
            initial: First rows of ids.
        """
        self._name = name
        self._rows = rows
        self._records = records
        self._space = space
        self._initial = initial
        for variable in (rows, records):
            if (found := table_behind(variable)) is not None:
                found[0].has_directory = True
        # For calls outside of functions: by shard, and whether rows are made.
        self._functions: dict[Any, Any] = {}
        self._unique_name = f"tfps/{name}/{uuid.uuid4().hex}"

    def look_up(
        self, ids_N: tf.Tensor, *, makes_rows: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Looks up rows.

        Args:
            ids_N: Any int64, shape `(N,)`.
            makes_rows: Whether ids without a row get one.

        Returns:
            The row of each id, shape `(N, D)`, and whether it has one; in the
            place of a row that there is not, any numbers without a gradient.
        """
        with tf.device(graph_checks.CPU):
            ids_U, positions_N = tf.unique(ids_N)
        found = table_behind(self._rows)
        if found is None:
            rows_UD, are_present_U = self._in_this_process(ids_U, makes_rows)
            applied: Callable[[tf.Tensor], tf.Tensor] = tf.identity
        else:
            table, applied = found
            rows_UD, are_present_U, positions_N = self._on_ps(
                table, ids_U, positions_N, makes_rows
            )
        are_present_N = tf.gather(are_present_U, positions_N)
        return applied(tf.gather(rows_UD, positions_N)), are_present_N

    def row_numbers(self, ids_N: tf.Tensor) -> tf.Tensor:
        """Returns the row of each id in the table, and makes it if need be.

        Args:
            ids_N: Distinct int64, shape `(N,)`.
        """
        found = table_behind(self._rows)
        if found is None:
            return self._found(
                range(self._space.num_rows),
                self._rows.value,
                self._records.value,
                ids_N,
                makes_rows=True,
            ).rows_N
        order, _, places_N = self._order(
            found[0], ids_N, tf.range(tf.size(ids_N)), makes_rows=True
        )
        return tf.gather(order.ids_U, places_N)

    def initial_rows(self, ids_N: tf.Tensor) -> tf.Tensor:
        """Returns the rows that ids begin with, shape `(N, D)`."""
        return self._initial.of(ids_N)

    def _in_this_process(
        self, ids_U: tf.Tensor, makes_rows: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        rows = self._rows.value
        with compat.stop_recording(), tf.device(graph_checks.CPU):
            mine = self._found(
                range(self._space.num_rows),
                rows,
                self._records.value,
                ids_U,
                makes_rows,
            )
        return tf.gather(rows, mine.rows_N), mine.are_present_N

    def _on_ps(
        self,
        table: Any,
        ids_U: tf.Tensor,
        positions_N: tf.Tensor,
        makes_rows: bool,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        order, are_present_U, positions_N = self._order(
            table, ids_U, positions_N, makes_rows
        )
        rows_UD = row_lookup.rows_in_order(table, order)
        return rows_UD, are_present_U, positions_N

    def _order(
        self,
        table: Any,
        ids_U: tf.Tensor,
        positions_N: tf.Tensor,
        makes_rows: bool,
    ) -> tuple[ShardOrder, tf.Tensor, tf.Tensor]:
        """Finds row numbers on all parameter servers.

        Returns:
            The row numbers, sorted by shard; whether each id has a row; and
            the places of the given positions in the new order.
        """
        records = _require(table_behind(self._records))
        if any(shard.unseen_steps is not None for shard in table.shards):
            raise errors.UnsupportedError(
                f"The table {self._name!r} has no fixed number of rows; its "
                "rows cannot catch up with steps that they have not seen. "
                "Received: sparse_update='caught_up'. Give the strategy "
                "another sparse_update."
            )
        parts, counts_S, positions_N = self._by_shard(
            table.layout, ids_U, positions_N
        )
        found = []
        with compat.stop_recording():
            for index, (shard, of_shard, part) in enumerate(
                zip(table.shards, records.shards, parts, strict=True)
            ):
                with tf.device(shard.device):
                    found.append(
                        self._found(
                            table.layout.rows(index),
                            shard,
                            of_shard,
                            part,
                            makes_rows,
                        )
                    )
        local_ids = [each.rows_N for each in found]
        order = ShardOrder(
            table.layout,
            _numbers_in_table(table.layout, local_ids),
            local_ids,
            counts_S,
            tf.size(ids_U),
        )
        are_present_U = order.join([each.are_present_N for each in found])
        return order, are_present_U, positions_N

    def _by_shard(
        self, layout: RowLayout, ids_U: tf.Tensor, positions_N: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor | None, tf.Tensor]:
        """Sorts distinct ids by the shard that they belong to.

        Returns:
            The ids of each shard, their numbers, and the places of the given
            positions in the new order.
        """
        if layout.num_shards == 1:
            return [ids_U], None, positions_N
        with tf.device(graph_checks.CPU):
            # Each bucket is in one shard.
            shards = [
                shard
                for shard in range(layout.num_shards)
                for _ in self._space.buckets(layout.rows(shard))
            ]
            shards_U = tf.gather(
                tf.constant(shards, tf.int32), id_hashing.buckets_of(ids_U)
            )
            parts = tf.dynamic_partition(ids_U, shards_U, layout.num_shards)
            places = tf.dynamic_partition(
                tf.range(tf.size(ids_U)), shards_U, layout.num_shards
            )
            counts_S = tf.concat(tf.raw_ops.ShapeN(input=parts), 0)
            new_places_U = tf.math.invert_permutation(tf.concat(places, 0))
            return parts, counts_S, tf.gather(new_places_U, positions_N)

    def _found(
        self,
        rows: range,
        shard: Any,
        records: Any,
        ids_N: tf.Tensor,
        makes_rows: bool,
    ) -> Found:
        """Finds rows of a shard, in code that is placed on its ps."""

        def find(ids_N: tf.Tensor) -> Found:
            directory = ShardDirectory(
                self._name,
                f"{self._unique_name}/{rows.start}_{rows.stop}",
                rows,
                self._space,
                shard,
                records,
                self._initial,
                [
                    slot
                    for slot in getattr(shard, "family", ())
                    if whole_of(slot).begins_as_its_variable
                ],
            )
            return directory.find(ids_N, makes_rows=makes_rows)

        if not tf.executing_eagerly():
            return find(ids_N)
        # In a function, because there are no locks outside of one.
        key = (id(shard), rows, makes_rows)
        if key not in self._functions:
            self._functions[key] = tf.function(
                lambda ids_N: find(ids_N).tensors,
                [tf.TensorSpec([None], tf.int64)],
                autograph=False,
            )
        return Found(*self._functions[key](ids_N))


def _require(found: tuple[Table, Any] | None) -> Table:
    """Returns the table of records, which is where its rows are."""
    if found is None:
        raise errors.VariableCreationError(
            "The rows of a dynamic table are on parameter servers, but its "
            "records are not. Make the whole layer under strategy.scope()."
        )
    return found[0]


def _numbers_in_table(
    layout: RowLayout, local_ids: list[tf.Tensor]
) -> tf.Tensor:
    """Returns row numbers of the table; rarely needed."""
    with tf.device(graph_checks.CPU):
        numbers = [
            each + tf.constant(offset, each.dtype)
            for each, offset in zip(local_ids, layout.offsets, strict=False)
        ]
        return numbers[0] if len(numbers) == 1 else tf.concat(numbers, 0)
