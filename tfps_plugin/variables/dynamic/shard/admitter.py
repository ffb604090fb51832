"""Decides which ids get rows, on the device of the code that uses it.

Shape legend: K distinct keys without rows, M those of them that got one, T
tables.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.dynamic.cells import Cells
from tfps_plugin.variables.dynamic.ids import keys
from tfps_plugin.variables.dynamic.policies import EXACT
from tfps_plugin.variables.dynamic.policies import Admission
from tfps_plugin.variables.dynamic.shard import counting_filter
from tfps_plugin.variables.dynamic.shard import tallies
from tfps_plugin.variables.dynamic.shard import waiting_counts
from tfps_plugin.variables.dynamic.shard.counting_filter import CountingFilter
from tfps_plugin.variables.dynamic.shard.tallies import Tallies
from tfps_plugin.variables.dynamic.shard.waiting_counts import WaitingCounts


@dataclasses.dataclass(frozen=True)
class Admitter:
    """Rule of admission, as operations on the counters of a shard.

    Attributes:
        admission: The rule.
        counters: The variable that `counters_of` describes, if any.
        cells: The cells of the shard.
        tallies: Numbers of the shard.
        alone: Returns a context that holds the lock of the shard, once some
            tensors are there.
    """

    admission: Admission
    counters: Any
    cells: Cells
    tallies: Tallies
    alone: Callable[[list[tf.Tensor]], Any]

    def are_admitted(self, keys_K: tf.Tensor) -> tf.Tensor:
        """Counts lookups; returns which keys should get rows.

        Args:
            keys_K: Distinct keys that have no rows.
        """
        are_admitted_K = tf.fill([keys.num_of(keys_K)], True)
        if self.admission.min_lookups > 1:
            counts_K = (
                self._counted_exactly(keys_K)
                if self._is_exact
                else self._counted_by_filter(keys_K)
            )
            are_admitted_K = counts_K >= self.admission.min_lookups
        if self.admission.probability is not None:
            drawn_K = tf.random.uniform([keys.num_of(keys_K)])
            are_admitted_K &= drawn_K < self.admission.probability
        left_out_M = tf.boolean_mask(keys_K, ~are_admitted_K)
        added = self.tallies.add(
            {tallies.NOT_ADMITTED: self._counts(left_out_M)}
        )
        with tf.control_dependencies([added]):
            return tf.identity(are_admitted_K)

    def note_made(self, keys_M: tf.Tensor) -> list[Any]:
        """Forgets the counts of keys that have got rows."""
        if not self._is_exact or self.admission.min_lookups == 1:
            return []
        with self.alone([keys_M]):
            forgotten = self._waiting.forget(keys_M)
        return [forgotten]

    def _counts(self, keys_M: tf.Tensor) -> tf.Tensor:
        """Returns the number of keys of each table, int64, shape `(T,)`."""
        return keys.counts_of(keys_M, self.cells.space.num_tables)

    @property
    def _is_exact(self) -> bool:
        return self.admission.counts == EXACT

    @property
    def _waiting(self) -> WaitingCounts:
        return WaitingCounts(self.counters, self.cells)

    def _counted_exactly(self, keys_K: tf.Tensor) -> tf.Tensor:
        with self.alone([keys_K]):
            counts_K, num_forgotten_T = self._waiting.counted(
                keys_K, self.admission.min_lookups
            )
        added = self.tallies.add({tallies.FORGOTTEN: num_forgotten_T})
        with tf.control_dependencies([added]):
            return tf.identity(counts_K)

    def _counted_by_filter(self, keys_K: tf.Tensor) -> tf.Tensor:
        counting = CountingFilter(self.counters, self.cells)
        counts_K = counting.counted(keys_K)
        with tf.control_dependencies([counts_K]):
            added = self.tallies.add({tallies.COUNTED: self._counts(keys_K)})
        with tf.control_dependencies([added]):
            totals_T = self.tallies.read()[tallies.COUNTED]
        are_due_T = totals_T > counting.most_lookups

        def halve() -> tf.Tensor:
            halved = counting.halve(are_due_T)
            begun = self.tallies.add(
                {tallies.COUNTED: tf.where(are_due_T, -totals_T, 0)}
            )
            with tf.control_dependencies([halved, begun]):
                return tf.constant(True)

        halved = tf.cond(
            tf.reduce_any(are_due_T), halve, lambda: tf.constant(False)
        )
        with tf.control_dependencies([halved]):
            return tf.identity(counts_K)


def counters_of(admission: Admission | None) -> tuple[str, int, str] | None:
    """Returns name, columns and dtype of the counters; None: there are none."""
    if admission is None or admission.min_lookups == 1:
        return None
    if admission.counts == EXACT:
        return "waiting", waiting_counts.NUM_COLUMNS, "int64"
    return "counters", counting_filter.COUNTERS_PER_ROW, "int32"
