"""Decides which ids get rows, on the device of the code that uses it.

Shape legend: K distinct ids without rows, M those of them that got one.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.dynamic.policies import EXACT
from tfps_plugin.variables.dynamic.policies import Admission
from tfps_plugin.variables.dynamic.row_space import RowSpace
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
        first_bucket: First bucket of the shard.
        space: Rows of all buckets.
        tallies: Numbers of the shard.
        alone: Returns a context that holds the lock of the shard, once some
            tensors are there.
    """

    admission: Admission
    counters: Any
    first_bucket: int
    space: RowSpace
    tallies: Tallies
    alone: Callable[[list[tf.Tensor]], Any]

    def are_admitted(self, ids_K: tf.Tensor) -> tf.Tensor:
        """Counts lookups; returns which ids should get rows.

        Args:
            ids_K: Distinct ids that have no rows.
        """
        are_admitted_K = tf.fill(tf.shape(ids_K), True)
        if self.admission.min_lookups > 1:
            counts_K = (
                self._counted_exactly(ids_K)
                if self._is_exact
                else self._counted_by_filter(ids_K)
            )
            are_admitted_K = counts_K >= self.admission.min_lookups
        if self.admission.probability is not None:
            drawn_K = tf.random.uniform(tf.shape(ids_K))
            are_admitted_K &= drawn_K < self.admission.probability
        num_left_out = tf.math.count_nonzero(~are_admitted_K)
        added = self.tallies.add({tallies.NOT_ADMITTED: num_left_out})
        with tf.control_dependencies([added]):
            return tf.identity(are_admitted_K)

    def note_made(self, ids_M: tf.Tensor) -> list[Any]:
        """Forgets the counts of ids that have got rows."""
        if not self._is_exact or self.admission.min_lookups == 1:
            return []
        with self.alone([ids_M]):
            forgotten = self._waiting.forget(ids_M)
        return [forgotten]

    @property
    def _is_exact(self) -> bool:
        return self.admission.counts == EXACT

    @property
    def _waiting(self) -> WaitingCounts:
        return WaitingCounts(self.counters, self.first_bucket, self.space)

    def _counted_exactly(self, ids_K: tf.Tensor) -> tf.Tensor:
        with self.alone([ids_K]):
            counts_K, num_forgotten = self._waiting.counted(
                ids_K, self.admission.min_lookups
            )
        added = self.tallies.add({tallies.FORGOTTEN: num_forgotten})
        with tf.control_dependencies([added]):
            return tf.identity(counts_K)

    def _counted_by_filter(self, ids_K: tf.Tensor) -> tf.Tensor:
        counting = CountingFilter(self.counters, self.first_bucket, self.space)
        counts_K = counting.counted(ids_K)
        with tf.control_dependencies([counts_K]):
            added = self.tallies.add({tallies.COUNTED: tf.size(ids_K)})
        with tf.control_dependencies([added]):
            total = self.tallies.read()[tallies.COUNTED]

        def halve() -> tf.Tensor:
            halved = counting.halve()
            begun = self.tallies.add({tallies.COUNTED: -total})
            with tf.control_dependencies([halved, begun]):
                return tf.constant(True)

        halved = tf.cond(
            total > counting.most_lookups, halve, lambda: tf.constant(False)
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
