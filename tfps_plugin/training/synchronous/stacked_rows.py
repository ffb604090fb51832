"""Rows of several shards on one parameter server, as rows of one table.

A ps gets the gradients of rows from every worker, and sums and divides them.
With one table of all rows, this takes a few operations; with many tables, it
would take as many for each.

Shape legend: N ids of all shards, D the rest of a row's shape.
"""

from collections.abc import Mapping
from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin.variables.lookup import shard_order
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows
from tfps_plugin.variables.lookup.distinct_rows import distinct
from tfps_plugin.variables.sharding.layout import RowLayout


class StackedRows:
    """Shards that lie behind one another in one table.

    Threading: only the thread that traces uses it.
    """

    def __init__(self, num_rows: Sequence[int]) -> None:
        """Stacks shards.

        Args:
            num_rows: Number of rows of each shard.
        """
        offsets = [0]
        for number in num_rows:
            offsets.append(offsets[-1] + number)
        self._layout = RowLayout(tuple(offsets))

    def stack(
        self, ids: Sequence[tf.Tensor], rows: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the ids and rows of all shards as those of the table.

        Args:
            ids: Row numbers of each shard.
            rows: Rows of each shard, all of one shape but for the first axis.

        Returns:
            The ids, int64 of shape `(N,)`, and the rows, of shape `(N, D)`.
        """
        shifted = [
            tf.cast(each, tf.int64) + offset
            for each, offset in zip(ids, self._layout.offsets, strict=False)
        ]
        return concatenated(shifted), concatenated(rows)

    def sums(
        self, ids_N: tf.Tensor, rows_ND: tf.Tensor
    ) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Sums the rows of each id, and returns them shard by shard.

        Args:
            ids_N: Row numbers of the table, repeated or not.
            rows_ND: Their rows.

        Returns:
            For each shard distinct ids, counted from its first row, and rows.
        """
        slices = distinct(tf.IndexedSlices(rows_ND, ids_N))
        ids, (rows,) = shard_order.split_by_shard(
            self._layout, slices.indices, slices.values
        )
        return list(zip(ids, rows, strict=True))


def rows_of_variable(
    layout: RowLayout,
    shape: tf.TensorShape,
    shards: Mapping[int, tuple[tf.Tensor, tf.Tensor]],
) -> DistinctRows:
    """Joins rows of some shards of a variable.

    Args:
        layout: Rows of each shard of the variable.
        shape: Shape of the variable.
        shards: Distinct ids, counted from the first row of their shard, and
            rows, by the number of the shard.

    Returns:
        Rows of the variable, which updates of these shards need not sort.
    """
    ids = [
        mine + layout.offsets[number] for number, (mine, _) in shards.items()
    ]
    return DistinctRows(
        concatenated([rows for _, rows in shards.values()]),
        concatenated(ids),
        tf.constant(shape.as_list(), tf.int64),
        _OrderOfSome(
            layout, {number: mine for number, (mine, _) in shards.items()}
        ),
    )


def concatenated(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns tensors behind one another, along their first axis."""
    return tensors[0] if len(tensors) == 1 else tf.concat(list(tensors), 0)


class _OrderOfSome:
    """Ids of some shards, in the order of the shards.

    Has the interface of `ShardOrder` that updates use.
    """

    def __init__(self, layout: RowLayout, ids: dict[int, tf.Tensor]) -> None:
        self.layout = layout
        self._ids = ids

    @property
    def is_usable(self) -> bool:
        """True in the function that has made the ids."""
        graph = tf.compat.v1.get_default_graph()
        return all(each.graph is graph for each in self._ids.values())

    @property
    def local_ids(self) -> list[tf.Tensor]:
        """The ids of each shard; None for the others."""
        return [self._ids.get(n) for n in range(self.layout.num_shards)]

    def split(self, values: tf.Tensor) -> list[tf.Tensor]:
        """Returns the values of each shard; None for the others."""
        parts = [values]
        if len(self._ids) > 1:
            sizes = tf.stack([tf.size(each) for each in self._ids.values()])
            parts = tf.split(values, sizes, num=len(self._ids))
        found = [None] * self.layout.num_shards
        for number, part in zip(self._ids, parts, strict=True):
            found[number] = part
        return found
