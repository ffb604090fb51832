"""Rows for ids that have none, made under the lock of the shard.

Shape legend: N ids, K of them that need rows, M rows, B buckets of the shard,
S buckets that are short of rows, D numbers in a row.
"""

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import tallies
from tfps_plugin.variables.dynamic.shard.evictor import Evictor
from tfps_plugin.variables.dynamic.shard.hash_index import FIRST_KEY
from tfps_plugin.variables.dynamic.shard.known_rows import KnownRows
from tfps_plugin.variables.dynamic.shard.rules import Rules
from tfps_plugin.variables.dynamic.shard.shard_parts import ID
from tfps_plugin.variables.dynamic.shard.shard_parts import NUM_COLUMNS
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts
from tfps_plugin.variables.dynamic.shard.whole_functions import WholeFunction
from tfps_plugin.variables.lookup import graph_checks


class RowMaker:
    """Makes rows, and room for them by eviction.

    Guarantees: two lookups that meet a new id at once make one row of it.
    """

    def __init__(
        self,
        known: KnownRows,
        parts: ShardParts,
        rules: Rules,
        evictor: Evictor | None,
        alone: Callable[[list[tf.Tensor]], Any],
    ) -> None:
        """Makes nothing yet.

        Args:
            known: Rows that there are.
            parts: Variables of the shard.
            rules: What all shards have in common.
            evictor: Selects rows that make room; None: none does.
            alone: Holds the lock of the shard.
        """
        self._known = known
        self._parts = parts
        self._rules = rules
        self._evictor = evictor
        self._alone = alone
        self._filled = WholeFunction(known.fill)

    def without_old(self, rows_N: tf.Tensor, now: tf.Tensor) -> tf.Tensor:
        """Returns rows, -1 in place of those that are too old.

        Only a step that trains leaves them out: it begins them anew. Until
        then, or until they make room for others, all readers see them.
        """
        if self._evictor is None:
            return rows_N
        are_old_N = self._evictor.are_old(
            tf.maximum(rows_N, RowSpace.ABSENT), now
        )
        return rows_N if are_old_N is None else tf.where(are_old_N, -1, rows_N)

    def make_alone(
        self,
        ids_N: tf.Tensor,
        rows_N: tf.Tensor,
        now: tf.Tensor,
        *,
        evicts: bool = True,
    ) -> tf.Tensor:
        """Makes rows for ids that have none; returns the rows of all.

        Args:
            ids_N: The ids.
            rows_N: Their rows as far as they are known, -1 for others.
            now: The present time of rows.
            evicts: Whether rows may go, as far as the rules allow it.
        """
        with self._alone([ids_N, rows_N, now]):
            num_new = tf.math.count_nonzero(rows_N < 0)
            num_keys = self._known.tallies.read()[tallies.KEYS]
            # Removed keys keep their places until the index is filled anew.
            built = tf.cond(
                num_keys + num_new > self._known.index.most_keys,
                self._filled.branch(),
                lambda: True,
            )
            with tf.control_dependencies([built]):
                known_N = self._known.rows_with_lowest(ids_N)
            if evicts:
                known_N = self.without_old(known_N, now)
            return tf.cond(
                tf.reduce_all(known_N >= 0),
                lambda: known_N,
                lambda: self._make(ids_N, known_N, now, evicts),
            )

    def _make(
        self, ids_N: tf.Tensor, rows_N: tf.Tensor, now: tf.Tensor, evicts: bool
    ) -> tf.Tensor:
        places_K1 = tf.where(rows_N < 0)
        ids_K = tf.gather_nd(ids_N, places_K1)
        # A row that is too old begins anew where it is.
        kept_K = self._known.rows_with_lowest(ids_K)
        fixed_K = tf.where(
            ids_K < FIRST_KEY, self._known.fixed_rows(ids_K), kept_K
        )
        needy_M1 = tf.where(fixed_K < 0)
        needy_M = tf.gather_nd(ids_K, needy_M1)
        buckets_M = self._known.local_buckets_of(needy_M)
        if self._evictor is not None and evicts:
            # Those that begin anew make no room for others.
            kept_M = tf.boolean_mask(kept_K, kept_K >= 0)
            with tf.control_dependencies(self._evictor.note_seen(kept_M, now)):
                made = self._make_room(self._evictor, buckets_M, now)
            with tf.control_dependencies([made]):
                buckets_M = tf.identity(buckets_M)
        with tf.control_dependencies([buckets_M]):
            if not (self._rules.may_lack_room and evicts):
                buckets_M = self._require_room(buckets_M, needy_M)
            taken_M = self._known.free.take(buckets_M)
        taken_K = tf.tensor_scatter_nd_update(fixed_K, needy_M1, taken_M)
        num_full = tf.math.count_nonzero(taken_K < 0)
        made_K1 = tf.where(taken_K >= 0)
        made_M = tf.gather_nd(taken_K, made_K1)
        begun = self._begin(
            tf.gather_nd(ids_K, made_K1),
            made_M,
            tf.gather_nd(fixed_K, made_K1) >= 0,
            now,
        )
        with tf.control_dependencies(self._tell_once(num_full)):
            counted = self._known.tallies.add(
                {
                    tallies.MADE: tf.size(made_M),
                    # Others are counted where they lose their rows.
                    tallies.EVICTED: tf.math.count_nonzero(kept_K >= 0),
                    tallies.KEYS: tf.size(needy_M),
                    tallies.WITHOUT_ROOM: num_full,
                }
            )
        with tf.control_dependencies([*begun, counted]):
            return tf.tensor_scatter_nd_update(rows_N, places_K1, taken_K)

    def _begin(
        self,
        ids_M: tf.Tensor,
        rows_M: tf.Tensor,
        are_kept_M: tf.Tensor,
        now: tf.Tensor,
    ) -> list[Any]:
        """Gives rows their first values, and then their ids."""
        first_MD = self._rules.initial.of(ids_M)
        written = []
        if self._evictor is not None:
            kept_M = tf.boolean_mask(rows_M, are_kept_M)
            written += self._parts.clear_slots(kept_M, self._rules.space)
            written += self._evictor.begin(rows_M, now)
        with tf.control_dependencies(written):
            written = [
                tf.raw_ops.ResourceScatterUpdate(
                    resource=each.handle,
                    indices=rows_M,
                    updates=tf.cast(first_MD, each.dtype),
                )
                for each in (self._parts.rows, *self._parts.followers)
            ]
        with tf.control_dependencies(written):
            recorded = tf.raw_ops.ResourceScatterUpdate(
                resource=self._parts.records.handle,
                indices=rows_M,
                updates=tf.stack([ids_M, tf.ones_like(ids_M)], 1),
            )
        # Others find a row only when it has its first value.
        with tf.control_dependencies([recorded]):
            are_keys_M = ids_M >= FIRST_KEY
            inserted = self._known.index.insert(
                tf.boolean_mask(ids_M, are_keys_M),
                tf.boolean_mask(rows_M, are_keys_M),
            )
        with tf.control_dependencies([inserted]):
            return self._known.write_version(self._known.recorded_version() + 1)

    def _require_room(
        self, buckets_M: tf.Tensor, ids_M: tf.Tensor
    ) -> tf.Tensor:
        """Returns the buckets of ids, if all of them have room."""
        return graph_checks.gated(
            buckets_M,
            tf.reduce_all(self._needed(buckets_M) <= self._known.free.counts()),
            [
                f"The table {self._rules.name!r} is full: there is no room for "
                "another id. Received: ids =",
                ids_M,
                f"rows of this shard = {self._known.num_rows}. Make the table "
                "larger (capacity), admit fewer ids (admission), or have the "
                "table drop some (beyond_capacity of an Eviction).",
            ],
        )

    def _tell_once(self, num_full: tf.Tensor) -> list[Any]:
        """Tells on standard error that ids have found no room.

        It is that of the parameter server: nobody else knows of it, and the
        step goes on.
        """
        if not self._rules.may_lack_room:
            return []
        before = self._known.tallies.read()[tallies.WITHOUT_ROOM]

        def tell() -> tf.Tensor:
            told = tf.print(
                f"WARNING: The table {self._rules.name!r} has no room for "
                "some ids, and treats them as unknown: their buckets are full "
                "of rows that were looked up a moment ago. Received: this many "
                "ids at once:",
                num_full,
                "\nMake the table larger (capacity). statistics() goes on to "
                "count such ids (without_room).",
                output_stream=sys.stderr,
            )
            with tf.control_dependencies([told]):
                return tf.constant(True)

        are_first = (num_full > 0) & tf.equal(before, 0)
        return [tf.cond(are_first, tell, lambda: False)]

    def _needed(self, buckets_M: tf.Tensor) -> tf.Tensor:
        """Returns how many rows each bucket needs, int32, shape `(B,)`."""
        size = len(self._known.buckets)
        return tf.math.bincount(buckets_M, minlength=size, maxlength=size)

    def _make_room(
        self, evictor: Evictor, buckets_M: tf.Tensor, now: tf.Tensor
    ) -> tf.Tensor:
        """Evicts rows of buckets that have fewer free ones than needed."""
        short_B = self._needed(buckets_M) - self._known.free.counts()
        short_S = tf.cast(tf.where(short_B > 0)[:, 0], tf.int32)

        def evict() -> tf.Tensor:
            rows_M = evictor.victims(short_S, tf.reduce_max(short_B), now)
            ids_M = self._known.recorded(rows_M, ID)
            removed = self._known.index.remove(ids_M)
            cleared = self._parts.clear_slots(rows_M, self._rules.space)
            with tf.control_dependencies([removed, *cleared]):
                recorded = tf.raw_ops.ResourceScatterUpdate(
                    resource=self._parts.records.handle,
                    indices=rows_M,
                    updates=tf.zeros(
                        tf.stack([tf.size(rows_M), NUM_COLUMNS]), tf.int64
                    ),
                )
            with tf.control_dependencies([recorded]):
                given = self._known.free.give(rows_M)
            counted = self._known.tallies.add(
                {tallies.EVICTED: tf.size(rows_M)}
            )
            with tf.control_dependencies([*given, counted]):
                return tf.constant(True)

        return tf.cond(tf.size(short_S) > 0, evict, lambda: False)
