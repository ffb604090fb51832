"""Directory of one shard: the row of each id, on the parameter server.

The directory is a hash table of TensorFlow's, beside the rows. What it knows is
also in an ordinary variable, the records, which is saved, restored and moved
with the rows. If the records are not those that the directory has written
last, for example after a restore or on another ps, the next lookup builds the
directory anew.

Shape legend: N distinct keys, K of them that have no rows, M of these that are
admitted.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.dynamic.ids import keys
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
from tfps_plugin.variables.dynamic.shard.shard_parts import IS_USED
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts
from tfps_plugin.variables.dynamic.whole_functions import WholeFunction
from tfps_plugin.variables.updates.update_lock import LocalLock


class ShardDirectory:
    """Finds and makes rows of one shard, in code that is placed on its ps.

    Guarantees: two lookups that meet a new id at once make one row of it. A
    lookup that finds a row finds it with its first value or a later one.
    A lookup that makes no rows, and loses none, takes no lock, unless others
    make rows at that moment.
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
            else Evictor(
                rules.eviction,
                parts,
                self._known.cells,
                seconds,
                rules.steps_per_update,
            )
        )
        self._maker = RowMaker(
            self._known, parts, rules, self._evictor, self._alone
        )
        # Steps rarely come to these.
        self._rows_of_any = WholeFunction(self._find_any)
        self._admitted = WholeFunction(self._admit)

    def find(self, keys_N: tf.Tensor, asker: Asker) -> Found:
        """Finds the rows of keys.

        Args:
            keys_N: Distinct keys of the shard.
            asker: Who asks.
        """
        rows_N = self._rows_of(keys_N)
        if asker is Asker.IMPORT:
            rows_N = self._rows_for_all(keys_N, rows_N)
        elif asker is Asker.STEP:
            rows_N = self._rows_for_training(keys_N, rows_N)
        rows_N.set_shape(keys_N.shape[:1])
        return Found(tf.maximum(rows_N, RowSpace.ABSENT), rows_N >= 0)

    def are_theirs(self, rows_N: tf.Tensor, ids_N: tf.Tensor) -> tf.Tensor:
        """Returns whether rows have not gone to other ids meanwhile.

        Args:
            rows_N: Rows that `find` has found before.
            ids_N: The ids that they were found for.
        """
        owners_N = self._known.recorded(rows_N, ID)
        # A free row is recorded as that of id 0.
        are_used_N = self._known.recorded(rows_N, IS_USED) > 0
        return (owners_N == ids_N) & are_used_N

    # Lookups, built anew if need be.

    def _rows_of(self, keys_N: tf.Tensor) -> tf.Tensor:
        """Returns the rows of keys, -1 where there is none."""
        rows_N, is_current = self._looked_up(keys_N)
        is_simple = is_current & tf.reduce_all(keys.ids_of(keys_N) >= FIRST_KEY)
        return tf.cond(
            is_simple, lambda: rows_N, self._rows_of_any.branch(keys_N)
        )

    def _looked_up(self, keys_N: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what the index says, and whether it is up to date."""
        rows_N, versions_T = self._known.index.look_up(keys_N)
        recorded_T = self._known.recorded_versions()
        return rows_N, tf.reduce_all(tf.equal(versions_T, recorded_T))

    def _find_any(self, keys_N: tf.Tensor) -> tf.Tensor:
        with self._alone([keys_N]):
            _, is_current = self._looked_up(keys_N[:0])
            built = tf.cond(is_current, lambda: True, self._build)
            with tf.control_dependencies([built]):
                return self._known.rows_with_lowest(keys_N)

    # Lookups of steps that train.

    def _rows_for_training(
        self, keys_N: tf.Tensor, rows_N: tf.Tensor
    ) -> tf.Tensor:
        # Nothing can be counted before the directory was built.
        with tf.control_dependencies([rows_N]):
            now_T = self._now()
        rows_N = self._maker.without_old(rows_N, now_T)
        num_asked_T, num_present_T = (
            keys.counts_of(keys_N, self._rules.space.num_tables, are_counted_N)
            for are_counted_N in (None, rows_N >= 0)
        )
        # The clock goes on after this lookup has read it.
        with tf.control_dependencies([now_T]):
            counted = self._known.tallies.add(
                {
                    tallies.CLOCK: 1,
                    tallies.ASKED: num_asked_T,
                    tallies.PRESENT: num_present_T,
                }
            )
        seen: list[Any] = [counted]
        if self._evictor is not None:
            present_M = tf.boolean_mask(rows_N, rows_N >= 0)
            seen += self._evictor.note_seen(present_M, now_T)
        with tf.control_dependencies(seen):
            rows_N = tf.identity(rows_N)
        return tf.cond(
            tf.reduce_all(rows_N >= 0),
            lambda: rows_N,
            self._admitted.branch(keys_N, rows_N, now_T),
        )

    def _admit(
        self, keys_N: tf.Tensor, rows_N: tf.Tensor, now_T: tf.Tensor
    ) -> tf.Tensor:
        """Makes rows for those keys without one that are admitted."""
        admission = self._rules.admission
        if admission is None:
            return self._maker.make_alone(keys_N, rows_N, now_T)
        places_K1 = tf.where(rows_N < 0)
        keys_K = tf.gather_nd(keys_N, places_K1)
        admitter = self._admitter(admission)
        are_admitted_K = admitter.are_admitted(keys_K)
        are_admitted_N = tf.tensor_scatter_nd_update(
            rows_N >= 0, places_K1, are_admitted_K
        )
        admitted_N1 = tf.where(are_admitted_N)
        known_M = tf.gather_nd(rows_N, admitted_N1)

        def make() -> tf.Tensor:
            keys_M = tf.gather_nd(keys_N, admitted_N1)
            made_M = self._maker.make_alone(keys_M, known_M, now_T)
            are_new_M = (known_M < 0) & (made_M >= 0)
            noted = admitter.note_made(tf.boolean_mask(keys_M, are_new_M))
            with tf.control_dependencies(noted):
                return tf.identity(made_M)

        made_M = tf.cond(tf.reduce_any(are_admitted_K), make, lambda: known_M)
        return tf.tensor_scatter_nd_update(rows_N, admitted_N1, made_M)

    def _now(self) -> tf.Tensor:
        """Returns the present time of each table; zero if nobody needs it."""
        if self._evictor is None:
            return tf.zeros([self._rules.space.num_tables], tf.int64)
        return self._evictor.now(self._known.tallies.read())

    def _admitter(self, admission: Admission) -> Admitter:
        return Admitter(
            admission,
            self._parts.counters,
            self._known.cells,
            self._known.tallies,
            self._alone,
        )

    # Imports.

    def _rows_for_all(self, keys_N: tf.Tensor, rows_N: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([rows_N]):
            now_T = self._now()
        seen: list[Any] = []
        if self._evictor is not None:
            # Otherwise the next step could find that a row was not seen for
            # long, and begin it anew.
            present_M = tf.boolean_mask(rows_N, rows_N >= 0)
            seen += self._evictor.note_seen(present_M, now_T)
        with tf.control_dependencies(seen):
            rows_N = self._maker.make_alone(keys_N, rows_N, now_T, evicts=False)
        if self._rules.admission is None:
            return rows_N
        with tf.control_dependencies([rows_N]):
            noted = self._admitter(self._rules.admission).note_made(keys_N)
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
        begun = []
        if self._evictor is not None:
            # Once the directory is up to date, lookups read the clock.
            numbers = self._evictor.going_on()
            begun.append(self._known.tallies.begin(numbers))
        with tf.control_dependencies(begun):
            return self._known.fill()
