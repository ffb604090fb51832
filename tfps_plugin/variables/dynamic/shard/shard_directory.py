"""Directory of one shard: the row of each id, on the parameter server.

The directory is a hash table of TensorFlow's, beside the rows. What it knows is
also in an ordinary variable, the records, which is saved, restored and moved
with the rows. If the records are not those that the directory has written
last, for example after a restore or on another ps, the next lookup builds the
directory anew.

Shape legend: N distinct ids, R rows of the shard, B buckets of the shard, K
ids that need rows.
"""

import dataclasses
import enum
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.dynamic import id_hashing
from tfps_plugin.variables.dynamic.initial_rows import InitialRows
from tfps_plugin.variables.dynamic.policies import Admission
from tfps_plugin.variables.dynamic.policies import Eviction
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import tallies
from tfps_plugin.variables.dynamic.shard.admitter import Admitter
from tfps_plugin.variables.dynamic.shard.evictor import Evictor
from tfps_plugin.variables.dynamic.shard.free_rows import FreeRows
from tfps_plugin.variables.dynamic.shard.hash_index import FIRST_KEY
from tfps_plugin.variables.dynamic.shard.hash_index import HashIndex
from tfps_plugin.variables.dynamic.shard.shard_parts import ID
from tfps_plugin.variables.dynamic.shard.shard_parts import IS_USED
from tfps_plugin.variables.dynamic.shard.shard_parts import NUM_COLUMNS
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts
from tfps_plugin.variables.dynamic.shard.tallies import Tallies
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.updates.update_lock import LocalLock

_MOST_VERSIONS = 1 << 30
# Removed keys keep their places, so a table that evicts has some to spare.
_PLACES_TO_SPARE = 1.5


class Asker(enum.Enum):
    """A caller that asks for the rows of ids."""

    # Makes none.
    READER = enum.auto()
    # A step that trains: ids without rows get some, as far as the rules allow.
    STEP = enum.auto()
    # The program gives ids rows, whatever the rules say, and no other id loses
    # its own. Without room, it is an error.
    IMPORT = enum.auto()


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules that all shards of a table have in common.

    Attributes:
        name: Name of the table, for messages.
        space: Rows of all buckets.
        initial: First rows of ids.
        admission: Which ids get rows; None: all.
        eviction: Which lose them; None: none.
    """

    name: str
    space: RowSpace
    initial: InitialRows
    admission: Admission | None = None
    eviction: Eviction | None = None

    @property
    def leaves_ids_out(self) -> bool:
        """True if an id of a step that trains may have no row."""
        return self.admission is not None or self.may_lack_room

    @property
    def may_lack_room(self) -> bool:
        """True if an id without room is no error."""
        return (
            self.eviction is not None
            and self.eviction.beyond_capacity is not None
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """Rows of ids.

    Attributes:
        rows_N: Row numbers of the shard, int32. Ids without a row have that
            of `RowSpace.ABSENT` in the first bucket of the shard.
        are_present_N: Whether each id has a row.
    """

    rows_N: tf.Tensor
    are_present_N: tf.Tensor

    @property
    def tensors(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The arguments by which it is made again."""
        return self.rows_N, self.are_present_N


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
        self._num_rows = len(rows)
        self._buckets = rules.space.buckets(rows)
        self._parts = parts
        spare = 1.0 if rules.eviction is None else _PLACES_TO_SPARE
        self._index = HashIndex(unique_name, int(spare * len(rows)))
        self._free = FreeRows(unique_name, len(self._buckets), rules.space)
        self._tallies = Tallies(unique_name)
        self._evictor = (
            None
            if rules.eviction is None
            else Evictor(rules.eviction, parts, rules.space, seconds)
        )

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
        owners_N = self._recorded(rows_N, ID)
        return tf.where(owners_N == ids_N, rows_N, RowSpace.ABSENT)

    # Lookups, built anew if need be.

    def _rows_of(self, ids_N: tf.Tensor) -> tf.Tensor:
        """Returns the rows of ids, -1 where there is none."""
        rows_N, version = self._index.look_up(ids_N)
        is_simple = tf.equal(version, self._recorded_version()) & (
            tf.reduce_all(ids_N >= FIRST_KEY)
        )
        return tf.cond(
            is_simple, lambda: rows_N, lambda: self._rows_of_any(ids_N)
        )

    def _rows_of_any(self, ids_N: tf.Tensor) -> tf.Tensor:
        with self._alone([ids_N]):
            _, version = self._index.look_up(ids_N[:0])
            is_current = tf.equal(version, self._recorded_version())
            built = tf.cond(is_current, lambda: True, self._build)
            with tf.control_dependencies([built]):
                return self._rows_with_lowest(ids_N)

    def _rows_with_lowest(self, ids_N: tf.Tensor) -> tf.Tensor:
        rows_N, _ = self._index.look_up(ids_N)
        fixed_N = self._fixed_rows(ids_N)
        are_used_N = self._recorded(fixed_N, IS_USED) > 0
        return tf.where(
            ids_N < FIRST_KEY, tf.where(are_used_N, fixed_N, -1), rows_N
        )

    # Lookups of steps that train.

    def _rows_for_training(
        self, ids_N: tf.Tensor, rows_N: tf.Tensor
    ) -> tf.Tensor:
        # Nothing can be counted before the directory was built.
        with tf.control_dependencies([rows_N]):
            now = self._now()
        rows_N = self._without_old(rows_N, now)
        num_present = tf.math.count_nonzero(rows_N >= 0)
        # The clock goes on after this lookup has read it.
        with tf.control_dependencies([now]):
            counted = self._tallies.add(
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
            lambda: self._admit(ids_N, rows_N, now),
        )

    def _without_old(self, rows_N: tf.Tensor, now: tf.Tensor) -> tf.Tensor:
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

    def _admit(
        self, ids_N: tf.Tensor, rows_N: tf.Tensor, now: tf.Tensor
    ) -> tf.Tensor:
        """Makes rows for those ids without one that are admitted."""
        admission = self._rules.admission
        if admission is None:
            return self._make_alone(ids_N, rows_N, now)
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
            made_M = self._make_alone(ids_M, known_M, now)
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
        return self._evictor.now(self._tallies.read())

    def _admitter(self, admission: Admission) -> Admitter:
        return Admitter(
            admission,
            self._parts.counters,
            self._buckets.start,
            self._rules.space,
            self._tallies,
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
            rows_N = self._make_alone(ids_N, rows_N, now, evicts=False)
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

    def _make_alone(
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
            num_keys = self._tallies.read()[tallies.KEYS]
            # Removed keys keep their places until the index is filled anew.
            built = tf.cond(
                num_keys + num_new > self._index.most_keys,
                self._fill,
                lambda: True,
            )
            with tf.control_dependencies([built]):
                known_N = self._rows_with_lowest(ids_N)
            if evicts:
                known_N = self._without_old(known_N, now)
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
        kept_K = self._rows_with_lowest(ids_K)
        fixed_K = tf.where(ids_K < FIRST_KEY, self._fixed_rows(ids_K), kept_K)
        needy_M1 = tf.where(fixed_K < 0)
        needy_M = tf.gather_nd(ids_K, needy_M1)
        buckets_M = id_hashing.buckets_of(needy_M) - self._buckets.start
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
            taken_M = self._free.take(buckets_M)
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
            counted = self._tallies.add(
                {
                    tallies.MADE: tf.size(made_M),
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
            inserted = self._index.insert(
                tf.boolean_mask(ids_M, are_keys_M),
                tf.boolean_mask(rows_M, are_keys_M),
            )
        with tf.control_dependencies([inserted]):
            return self._write_version(self._recorded_version() + 1)

    def _require_room(
        self, buckets_M: tf.Tensor, ids_M: tf.Tensor
    ) -> tf.Tensor:
        """Returns the buckets of ids, if all of them have room."""
        return graph_checks.gated(
            buckets_M,
            tf.reduce_all(self._needed(buckets_M) <= self._free.counts()),
            [
                f"The table {self._rules.name!r} is full: there is no room for "
                "another id. Received: ids =",
                ids_M,
                f"rows of this shard = {self._num_rows}. Make the table "
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
        before = self._tallies.read()[tallies.WITHOUT_ROOM]

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
        size = len(self._buckets)
        return tf.math.bincount(buckets_M, minlength=size, maxlength=size)

    def _make_room(
        self, evictor: Evictor, buckets_M: tf.Tensor, now: tf.Tensor
    ) -> tf.Tensor:
        """Evicts rows of buckets that have fewer free ones than needed."""
        short_B = self._needed(buckets_M) - self._free.counts()
        short_S = tf.cast(tf.where(short_B > 0)[:, 0], tf.int32)

        def evict() -> tf.Tensor:
            rows_M = evictor.victims(short_S, tf.reduce_max(short_B), now)
            ids_M = self._recorded(rows_M, ID)
            removed = self._index.remove(ids_M)
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
                given = self._free.give(rows_M)
            counted = self._tallies.add({tallies.EVICTED: tf.size(rows_M)})
            with tf.control_dependencies([*given, counted]):
                return tf.constant(True)

        return tf.cond(tf.size(short_S) > 0, evict, lambda: False)

    def _build(self) -> tf.Tensor:
        """Builds the directory from records that others have written."""
        numbers = {} if self._evictor is None else self._evictor.going_on()
        return self._fill(numbers)

    def _fill(self, numbers: dict[int, tf.Tensor] | None = None) -> tf.Tensor:
        """Fills the index and the lists of free rows from the records.

        Args:
            numbers: Tallies to begin with.
        """
        space = self._rules.space
        records_R2 = tf.raw_ops.ReadVariableOp(
            resource=self._parts.records.handle, dtype=tf.int64
        )
        records_R2 = tf.ensure_shape(records_R2, [self._num_rows, NUM_COLUMNS])
        offsets_R = tf.tile(
            tf.range(space.rows_per_bucket), [len(self._buckets)]
        )
        are_used_R = (records_R2[:, IS_USED] > 0) & (
            offsets_R >= space.RESERVED
        )
        used_M1 = tf.where(are_used_R)
        done: list[Any] = [
            self._index.fill(
                tf.gather_nd(records_R2[:, ID], used_M1),
                tf.cast(used_M1[:, 0], tf.int32),
            ),
            *self._free.reset(are_used_R),
            self._tallies.begin(
                {
                    **(numbers or {}),
                    tallies.KEYS: tf.size(used_M1, out_type=tf.int64),
                }
            ),
        ]
        # Not beside the read above, which would make it copy the records.
        with tf.control_dependencies(done):
            forgotten = self._forget_versions()
        with tf.control_dependencies([forgotten]):
            version = tf.random.uniform(
                [], maxval=_MOST_VERSIONS, dtype=tf.int32
            )
            written = self._write_version(tf.cast(version, tf.int64))
        with tf.control_dependencies(written):
            return tf.constant(True)

    def _forget_versions(self) -> tf.Operation:
        """Erases the versions of shards that began at other buckets.

        A table may be cut as it was before, on a parameter server that still
        has the directory of that time.
        """
        size, stride = len(self._buckets), self._rules.space.rows_per_bucket
        return tf.raw_ops.ResourceScatterUpdate(
            resource=self._parts.records.handle,
            indices=tf.range(size) * stride + RowSpace.ABSENT,
            updates=tf.zeros([size, NUM_COLUMNS], tf.int64),
        )

    # Records.

    def _recorded(self, rows_N: tf.Tensor, column: int) -> tf.Tensor:
        return tf.raw_ops.ResourceGatherNd(
            resource=self._parts.records.handle,
            indices=tf.stack([rows_N, tf.fill(tf.shape(rows_N), column)], 1),
            dtype=tf.int64,
        )

    def _recorded_version(self) -> tf.Tensor:
        return tf.raw_ops.ResourceGatherNd(
            resource=self._parts.records.handle,
            indices=tf.constant([RowSpace.ABSENT, ID], tf.int32),
            dtype=tf.int64,
        )

    def _write_version(self, version: tf.Tensor) -> list[Any]:
        """Writes the version to the directory and the records."""
        return [
            self._index.write_version(version),
            tf.raw_ops.ResourceScatterUpdate(
                resource=self._parts.records.handle,
                indices=tf.constant([RowSpace.ABSENT], tf.int32),
                updates=tf.stack([[version, tf.constant(0, tf.int64)]]),
            ),
        ]

    def _fixed_rows(self, ids_N: tf.Tensor) -> tf.Tensor:
        """Returns the row of each of the lowest ids; any row for others."""
        buckets_N = id_hashing.buckets_of(ids_N) - self._buckets.start
        offsets_N = tf.minimum(ids_N - tf.int64.min, RowSpace.NUM_LOWEST - 1)
        offsets_N = tf.cast(tf.maximum(offsets_N, 0), tf.int32)
        return (
            buckets_N * self._rules.space.rows_per_bucket
            + RowSpace.LOWEST
            + offsets_N
        )
