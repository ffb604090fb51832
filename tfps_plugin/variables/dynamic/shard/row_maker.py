"""Rows for ids that have none, made under the lock of the shard.

Shape legend: N keys, K of them that need rows, M rows, C cells of the shard,
S cells that are short of rows, T tables, D numbers in a row.
"""

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.dynamic.ids import keys
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import tallies
from tfps_plugin.variables.dynamic.shard.evictor import Evictor
from tfps_plugin.variables.dynamic.shard.hash_index import FIRST_KEY
from tfps_plugin.variables.dynamic.shard.known_rows import KnownRows
from tfps_plugin.variables.dynamic.shard.rules import Rules
from tfps_plugin.variables.dynamic.shard.shard_parts import ID
from tfps_plugin.variables.dynamic.shard.shard_parts import NUM_COLUMNS
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts
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

    def without_old(self, rows_N: tf.Tensor, now_T: tf.Tensor) -> tf.Tensor:
        """Returns rows, -1 in place of those that are too old.

        Only a step that trains leaves them out: it begins them anew. Until
        then, or until they make room for others, all readers see them.
        """
        if self._evictor is None:
            return rows_N
        are_old_N = self._evictor.are_old(
            tf.maximum(rows_N, RowSpace.ABSENT), now_T
        )
        return rows_N if are_old_N is None else tf.where(are_old_N, -1, rows_N)

    def make_alone(
        self,
        keys_N: tf.Tensor,
        rows_N: tf.Tensor,
        now_T: tf.Tensor,
        *,
        evicts: bool = True,
    ) -> tf.Tensor:
        """Makes rows for keys that have none; returns the rows of all.

        Args:
            keys_N: The keys.
            rows_N: Their rows as far as they are known, -1 for others.
            now_T: The present time of the rows of each table.
            evicts: Whether rows may go, as far as the rules allow it.
        """
        with self._alone([keys_N, rows_N, now_T]):
            with tf.control_dependencies(self._refill(keys_N, rows_N)):
                known_N = self._known.rows_with_lowest(keys_N)
            if evicts:
                known_N = self.without_old(known_N, now_T)
            return tf.cond(
                tf.reduce_all(known_N >= 0),
                lambda: known_N,
                lambda: self._make(keys_N, known_N, now_T, evicts),
            )

    def _refill(self, keys_N: tf.Tensor, rows_N: tf.Tensor) -> list[tf.Tensor]:
        """Makes places for new keys where removed ones have taken them all."""
        if self._evictor is None:
            return []
        num_new_T = self._counts(keys_N, rows_N < 0)
        num_keys_T = self._known.tallies.read()[tallies.KEYS] + num_new_T
        are_due_T = num_keys_T > self._known.index.most_keys
        return [
            tf.cond(
                tf.reduce_any(are_due_T),
                lambda: self._known.refill(are_due_T),
                lambda: True,
            )
        ]

    def _make(
        self,
        keys_N: tf.Tensor,
        rows_N: tf.Tensor,
        now_T: tf.Tensor,
        evicts: bool,
    ) -> tf.Tensor:
        places_K1 = tf.where(rows_N < 0)
        keys_K = tf.gather_nd(keys_N, places_K1)
        # A row that is too old begins anew where it is.
        kept_K = self._known.rows_with_lowest(keys_K)
        fixed_K = tf.where(
            keys.ids_of(keys_K) < FIRST_KEY,
            self._known.fixed_rows(keys_K),
            kept_K,
        )
        needy_M1 = tf.where(fixed_K < 0)
        needy_M = tf.gather_nd(keys_K, needy_M1)
        cells_M = self._known.cells.of_keys(needy_M)
        if self._evictor is not None and evicts:
            # Those that begin anew make no room for others.
            kept_M = tf.boolean_mask(kept_K, kept_K >= 0)
            with tf.control_dependencies(
                self._evictor.note_seen(kept_M, now_T)
            ):
                made = self._make_room(self._evictor, cells_M, now_T)
            with tf.control_dependencies([made]):
                cells_M = tf.identity(cells_M)
        with tf.control_dependencies([cells_M]):
            if not (self._rules.may_lack_room and evicts):
                cells_M = self._require_room(cells_M, needy_M)
            taken_M = self._known.free.take(cells_M)
        taken_K = tf.tensor_scatter_nd_update(fixed_K, needy_M1, taken_M)
        num_full_T = self._counts(keys_K, taken_K < 0)
        made_K1 = tf.where(taken_K >= 0)
        made_M = tf.gather_nd(taken_K, made_K1)
        begun = self._begin(
            tf.gather_nd(keys_K, made_K1),
            made_M,
            tf.gather_nd(fixed_K, made_K1) >= 0,
            now_T,
        )
        with tf.control_dependencies(self._tell_once(num_full_T)):
            counted = self._known.tallies.add(
                {
                    tallies.MADE: self._counts(keys_K, taken_K >= 0),
                    # Others are counted where they lose their rows.
                    tallies.EVICTED: self._counts(keys_K, kept_K >= 0),
                    tallies.KEYS: self._counts(needy_M, taken_M >= 0),
                    tallies.WITHOUT_ROOM: num_full_T,
                }
            )
        with tf.control_dependencies([*begun, counted]):
            return tf.tensor_scatter_nd_update(rows_N, places_K1, taken_K)

    def _begin(
        self,
        keys_M: tf.Tensor,
        rows_M: tf.Tensor,
        are_kept_M: tf.Tensor,
        now_T: tf.Tensor,
    ) -> list[Any]:
        """Gives rows their first values, and then their ids."""
        ids_M = keys.ids_of(keys_M)
        first_MD = self._rules.initial.of(keys_M)
        written = []
        if self._evictor is not None:
            kept_M = tf.boolean_mask(rows_M, are_kept_M)
            written += self._parts.clear_slots(kept_M, self._rules.space)
            written += self._evictor.begin(rows_M, now_T)
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
            # The index must not be given a key that it has.
            are_keys_M = (ids_M >= FIRST_KEY) & ~are_kept_M
            inserted = self._known.index.insert(
                tf.boolean_mask(keys_M, are_keys_M),
                tf.boolean_mask(rows_M, are_keys_M),
            )
        with tf.control_dependencies(inserted):
            return self._known.write_next_versions()

    def _require_room(self, cells_M: tf.Tensor, keys_M: tf.Tensor) -> tf.Tensor:
        """Returns the cells of keys, if all of them have room."""
        num_short_C = self._needed(cells_M) - self._known.free.counts()
        table = self._known.cells.tables_of(
            tf.argmax(num_short_C, output_type=tf.int32)
        )
        ids_M, tables_M = keys.ids_of(keys_M), keys.tables_of(keys_M)
        if tables_M is not None:
            ids_M = tf.boolean_mask(ids_M, tables_M == table)
        num_buckets = len(self._known.cells.buckets)
        nums_rows = [num_buckets * n for n in self._rules.space.rows_per_cell]
        return graph_checks.gated(
            cells_M,
            tf.reduce_all(num_short_C <= 0),
            [
                self._of_table(
                    table,
                    "The table {name!r} is full: there is no room for another "
                    "id. Received: ids =",
                ),
                ids_M,
                tf.gather(
                    [
                        f"rows of this shard = {num_rows}. Make the table "
                        "larger (capacity), admit fewer ids (admission), or "
                        "have the table drop some (beyond_capacity of an "
                        "Eviction)."
                        for num_rows in nums_rows
                    ],
                    table,
                ),
            ],
        )

    def _tell_once(self, num_full_T: tf.Tensor) -> list[Any]:
        """Tells on standard error that ids have found no room.

        It is that of the parameter server: nobody else knows of it, and the
        step goes on.
        """
        if not self._rules.may_lack_room:
            return []
        before_T = self._known.tallies.read()[tallies.WITHOUT_ROOM]
        are_first_T = (num_full_T > 0) & tf.equal(before_T, 0)

        def tell() -> tf.Tensor:
            texts_T = tf.strings.join(
                [
                    [
                        f"WARNING: The table {name!r} has no room for some "
                        "ids, and treats them as unknown: their buckets are "
                        "full of rows that were looked up a moment ago. "
                        "Received: this many ids at once: "
                        for name in self._rules.tables
                    ],
                    tf.strings.as_string(num_full_T),
                    "\nMake the table larger (capacity). statistics() goes on "
                    "to count such ids (without_room).",
                ]
            )
            text = tf.strings.reduce_join(
                tf.boolean_mask(texts_T, are_first_T), separator="\n"
            )
            # Alone, a text is printed without quotation marks.
            told = tf.print(text, output_stream=sys.stderr)
            with tf.control_dependencies([told]):
                return tf.constant(True)

        return [tf.cond(tf.reduce_any(are_first_T), tell, lambda: False)]

    def _of_table(self, table: tf.Tensor, text: str) -> tf.Tensor:
        """Returns a text with the name of one of the tables."""
        texts = [text.format(name=name) for name in self._rules.tables]
        return tf.gather(texts, table)

    def _counts(
        self, keys_N: tf.Tensor, are_counted_N: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns the number of keys of each table; see `keys.counts_of`."""
        size = self._rules.space.num_tables
        return keys.counts_of(keys_N, size, are_counted_N)

    def _needed(self, cells_M: tf.Tensor) -> tf.Tensor:
        """Returns how many rows each cell needs, int32, shape `(C,)`."""
        size = len(self._known.cells)
        return tf.math.bincount(cells_M, minlength=size, maxlength=size)

    def _make_room(
        self, evictor: Evictor, cells_M: tf.Tensor, now_T: tf.Tensor
    ) -> tf.Tensor:
        """Evicts rows of cells that have fewer free ones than needed."""
        short_C = self._needed(cells_M) - self._known.free.counts()
        short_S = tf.cast(tf.where(short_C > 0)[:, 0], tf.int32)

        def evict() -> tf.Tensor:
            rows_M = evictor.victims(
                short_S, tf.gather(short_C, short_S), now_T
            )
            keys_M = self._known.cells.keys_of(
                self._known.recorded(rows_M, ID), rows_M
            )
            removed = self._known.index.remove(keys_M)
            cleared = self._parts.clear_slots(rows_M, self._rules.space)
            with tf.control_dependencies([*removed, *cleared]):
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
                {tallies.EVICTED: self._counts(keys_M)}
            )
            with tf.control_dependencies([*given, counted]):
                # What follows may fail.
                changed = self._known.write_next_versions()
            with tf.control_dependencies(changed):
                return tf.constant(True)

        return tf.cond(tf.size(short_S) > 0, evict, lambda: False)
