"""Rows of a table in which no row number occurs twice.

An update must see each row once, with the sum of its gradients. Sums cost time
on every worker, so slices that are already summed have a type of their own.
"""

from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from tfps_plugin.variables.lookup import shard_order
from tfps_plugin.variables.sharding.layout import RowLayout


class Order(Protocol):
    """Distinct ids grouped by shard, such as a `ShardOrder`."""

    @property
    def layout(self) -> RowLayout:
        """Rows of each shard."""

    @property
    def local_ids(self) -> Sequence[tf.Tensor]:
        """For each shard its ids, counted from its own first row."""

    @property
    def is_usable(self) -> bool:
        """True if the code that runs now may use its tensors."""

    def split(self, values: tf.Tensor) -> list[tf.Tensor]:
        """Returns for each shard the values of its ids."""


class DistinctRows(tf.IndexedSlices):
    """Slices in which every id occurs once.

    This is the gradient of a table that was looked up once. TensorFlow
    concatenates the gradients of several lookups into a plain
    `tf.IndexedSlices`.
    """

    def __init__(
        self,
        values: tf.Tensor,
        indices: tf.Tensor,
        dense_shape: tf.Tensor | None = None,
        order: Order | None = None,
    ) -> None:
        """Creates slices.

        Args:
            values: A row for each id, shape `(U, D)`.
            indices: Distinct row numbers, shape `(U,)`.
            dense_shape: Shape of the table.
            order: The same ids grouped by shard, if a lookup grouped them.
        """
        super().__init__(values, indices, dense_shape)
        self._order = order

    def with_values(self, values: tf.Tensor) -> "DistinctRows":
        """Returns slices of the same ids with other values."""
        return DistinctRows(values, self.indices, self.dense_shape, self._order)

    def has_ids_of(self, other: "DistinctRows") -> bool:
        """Returns whether both come from one lookup, and so have the same ids.

        Args:
            other: Other slices.
        """
        return self._order is not None and self._order is other._order

    def order_by(self, layout: RowLayout) -> Order | None:
        """Returns how a lookup has grouped the ids by these shards, if it has.

        Args:
            layout: Rows of each shard.
        """
        order = self._order
        if order is None or order.layout != layout or not order.is_usable:
            return None
        return order

    def split_by_shard(
        self, layout: RowLayout, values: tf.Tensor
    ) -> tuple[Sequence[tf.Tensor], list[tf.Tensor]]:
        """Splits the ids, and values that belong to them, by shard.

        Args:
            layout: Rows of each shard of the variable that is updated.
            values: Shape `(U, ...)`.

        Returns:
            For each shard its ids, counted from its own first row; and for
            each shard the values of these ids.
        """
        if (order := self.order_by(layout)) is not None:
            return order.local_ids, order.split(values)
        local_ids, (parts,) = shard_order.split_by_shard(
            layout, tf.convert_to_tensor(self.indices), values
        )
        return local_ids, parts


def dense_shape(shape: tf.TensorShape) -> tf.Tensor:
    """Returns the shape of a table as its slices have it, as a tensor.

    Args:
        shape: Shape of the table, fully defined.

    Returns:
        A vector, int32 if the sizes fit: TensorFlow's own slices have that
        dtype, and the slices of two branches must have the same.
    """
    sizes = shape.as_list()
    is_small = max(sizes) <= tf.int32.max
    return tf.constant(sizes, tf.int32 if is_small else tf.int64)


def distinct(slices: tf.IndexedSlices) -> DistinctRows:
    """Sums the rows of each id.

    Args:
        slices: Values of shape `(N, ...)` for ids of shape `(N,)`, repeated
            or not.

    Returns:
        Each id once, in the order of its first occurrence, with the sum of
        its values. If the ids are distinct already, nothing is summed.
    """
    if isinstance(slices, DistinctRows):
        return slices
    ids_U, positions_N = tf.unique(tf.convert_to_tensor(slices.indices))
    sums_UD = tf.math.unsorted_segment_sum(
        tf.convert_to_tensor(slices.values), positions_N, tf.size(ids_U)
    )
    return DistinctRows(sums_UD, ids_U, slices.dense_shape)
