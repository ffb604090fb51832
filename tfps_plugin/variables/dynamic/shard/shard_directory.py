"""Directory of one shard: the row of each id, on the parameter server.

The directory is a hash table of TensorFlow's, beside the rows. What it knows is
also in an ordinary variable, the records, which is saved, restored and moved
with the rows. If the records are not those that the directory has written
last, for example after a restore or on another ps, the next lookup builds the
directory anew.

Shape legend: N distinct ids, K of them that have no rows, M of these that are
admitted.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.dynamic.policies import Admission
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import tallies
from tfps_plugin.variables.dynamic.shard.admitter import Admitter
from tfps_plugin.variables.dynamic.shard.evictor import Evictor
from tfps_plugin.variables.dynamic.shard.found import Asker
from tfps_plugin.variables.dynamic.shard.found import Found
from tfps_plugin.variables.dynamic.shard.hash_index import FIRST_KEY
from tfps_plugin.variables.dynamic.shard.known_rows import KnownRows
from tfps_plugin.variables.dynamic.shard.row_maker import RowMaker
from tfps_plugin.variables.dynamic.shard.rules import Rules
from tfps_plugin.variables.dynamic.shard.shard_parts import ID
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts
from tfps_plugin.variables.dynamic.shard.whole_functions import WholeFunction
from tfps_plugin.variables.updates.update_lock import LocalLock


class ShardDirectory:
    """Finds and makes rows of one shard, in code that is placed on its ps.

    Guarantees: two lookups that meet a new id at once make one row of it. A
    lookup that finds a row finds it with its first value or a later one.
    A lookup that makes no rows, and loses none, takes no lock.
    """

    def __init__(
        self,
        unique_name: str,
        rows: range,
        parts: ShardParts,
        rules: Rules,
        seconds: Callable[[], tf.Tensor] = tf.timestamp,
    ) -> None:
        """Describes a directory; makes nothing yet.

        Args:
            unique_name: A name that nothing else on the ps has.
            rows: Rows of the shard, counted in the table.
            parts: Their variables.
            rules: What all shards have in common.
            seconds: Returns the time of the task, float64.
        """
        self._unique_name = unique_name
        self._rules = rules
        self._parts = parts
        self._known = KnownRows(unique_name, rows, parts, rules)
        self._evictor = (
            None
            if rules.eviction is None
            else Evictor(rules.eviction, parts, rules.space, seconds)
        )
        self._maker = RowMaker(
            self._known, parts, rules, self._evictor, self._alone
        )
        # Steps rarely come to these.
        self._rows_of_any = WholeFunction(self._find_any)
        self._built = WholeFunction(self._build)
        self._admitted = WholeFunction(self._admit)

    def find(self, ids_N: tf.Tensor, asker: Asker) -> Found:
        """Finds the rows of ids.

        Args:
            ids_N: Distinct ids of the shard, int64.
            asker: Who asks.
        """
        rows_N = self._rows_of(ids_N)
        if asker is Asker.IMPORT:
            rows_N = self._rows_for_all(ids_N, rows_N)
        elif asker is Asker.STEP:
            rows_N = self._rows_for_training(ids_N, rows_N)
        rows_N.set_shape(ids_N.shape)
        return Found(tf.maximum(rows_N, RowSpace.ABSENT), rows_N >= 0)

    def still_theirs(self, rows_N: tf.Tensor, ids_N: tf.Tensor) -> tf.Tensor:
        """Returns rows, without those that have gone to other ids meanwhile.

        Args:
            rows_N: Rows that `find` has found before.
            ids_N: The ids that they were found for.
        """
        if self._evictor is None:
            return rows_N
        owners_N = self._known.recorded(rows_N, ID)
        return tf.where(owners_N == ids_N, rows_N, RowSpace.ABSENT)

    # Lookups, built anew if need be.

    def _rows_of(self, ids_N: tf.Tensor) -> tf.Tensor:
        """Returns the rows of ids, -1 where there is none."""
        rows_N, version = self._known.index.look_up(ids_N)
        is_simple = tf.equal(version, self._known.recorded_version()) & (
            tf.reduce_all(ids_N >= FIRST_KEY)
        )
        return tf.cond(
            is_simple, lambda: rows_N, self._rows_of_any.branch(ids_N)
        )

    def _find_any(self, ids_N: tf.Tensor) -> tf.Tensor:
        with self._alone([ids_N]):
            _, version = self._known.index.look_up(ids_N[:0])
            is_current = tf.equal(version, self._known.recorded_version())
            built = tf.cond(is_current, lambda: True, self._built.branch())
            with tf.control_dependencies([built]):
                return self._known.rows_with_lowest(ids_N)

    # Lookups of steps that train.

    def _rows_for_training(
        self, ids_N: tf.Tensor, rows_N: tf.Tensor
    ) -> tf.Tensor:
        # Nothing can be counted before the directory was built.
        with tf.control_dependencies([rows_N]):
            now = self._now()
        rows_N = self._maker.without_old(rows_N, now)
        num_present = tf.math.count_nonzero(rows_N >= 0)
        # The clock goes on after this lookup has read it.
        with tf.control_dependencies([now]):
            counted = self._known.tallies.add(
                {
                    tallies.CLOCK: 1,
                    tallies.ASKED: tf.size(ids_N),
                    tallies.PRESENT: num_present,
                }
            )
        seen: list[Any] = [counted]
        if self._evictor is not None:
            present_M = tf.boolean_mask(rows_N, rows_N >= 0)
            seen += self._evictor.note_seen(present_M, now)
        with tf.control_dependencies(seen):
            rows_N = tf.identity(rows_N)
        return tf.cond(
            tf.equal(num_present, tf.size(ids_N, tf.int64)),
            lambda: rows_N,
            self._admitted.branch(ids_N, rows_N, now),
        )

    def _admit(
        self, ids_N: tf.Tensor, rows_N: tf.Tensor, now: tf.Tensor
    ) -> tf.Tensor:
        """Makes rows for those ids without one that are admitted."""
        admission = self._rules.admission
        if admission is None:
            return self._maker.make_alone(ids_N, rows_N, now)
        places_K1 = tf.where(rows_N < 0)
        ids_K = tf.gather_nd(ids_N, places_K1)
        admitter = self._admitter(admission)
        are_admitted_K = admitter.are_admitted(ids_K)
        are_admitted_N = tf.tensor_scatter_nd_update(
            rows_N >= 0, places_K1, are_admitted_K
        )
        admitted_N1 = tf.where(are_admitted_N)
        known_M = tf.gather_nd(rows_N, admitted_N1)

        def make() -> tf.Tensor:
            ids_M = tf.gather_nd(ids_N, admitted_N1)
            made_M = self._maker.make_alone(ids_M, known_M, now)
            are_new_M = (known_M < 0) & (made_M >= 0)
            noted = admitter.note_made(tf.boolean_mask(ids_M, are_new_M))
            with tf.control_dependencies(noted):
                return tf.identity(made_M)

        made_M = tf.cond(tf.reduce_any(are_admitted_K), make, lambda: known_M)
        return tf.tensor_scatter_nd_update(rows_N, admitted_N1, made_M)

    def _now(self) -> tf.Tensor:
        """Returns the present time of rows; zero if nobody needs it."""
        if self._evictor is None:
            return tf.constant(0, tf.int64)
        return self._evictor.now(self._known.tallies.read())

    def _admitter(self, admission: Admission) -> Admitter:
        return Admitter(
            admission,
            self._parts.counters,
            self._known.buckets.start,
            self._rules.space,
            self._known.tallies,
            self._alone,
        )

    # Imports.

    def _rows_for_all(self, ids_N: tf.Tensor, rows_N: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([rows_N]):
            now = self._now()
        seen: list[Any] = []
        if self._evictor is not None:
            # Otherwise the next step could find that a row was not seen for
            # long, and begin it anew.
            present_M = tf.boolean_mask(rows_N, rows_N >= 0)
            seen += self._evictor.note_seen(present_M, now)
        with tf.control_dependencies(seen):
            rows_N = self._maker.make_alone(ids_N, rows_N, now, evicts=False)
        if self._rules.admission is None:
            return rows_N
        with tf.control_dependencies([rows_N]):
            noted = self._admitter(self._rules.admission).note_made(ids_N)
        with tf.control_dependencies(noted):
            return tf.identity(rows_N)

    # Changes, under the lock.

    def _alone(self, given: list[tf.Tensor]) -> Any:
        """Holds the lock of the shard, on a parameter server or here."""
        lock = getattr(self._parts.records, "update_lock", None)
        if lock is None:
            lock = LocalLock(f"{self._unique_name}/lock")
        return lock.holding(given)

    def _build(self) -> tf.Tensor:
        """Builds the directory from records that others have written."""
        numbers = {} if self._evictor is None else self._evictor.going_on()
        return self._known.fill(numbers)
