"""Tests of admission and eviction of one shard, against plain Python."""

import collections
import functools
import uuid
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tfps_plugin.exports.first_rows import GOLDEN
from tfps_plugin.variables.dynamic.ids import id_hashing
from tfps_plugin.variables.dynamic.initial_rows import InitialRows
from tfps_plugin.variables.dynamic.policies import Admission
from tfps_plugin.variables.dynamic.policies import Eviction
from tfps_plugin.variables.dynamic.row_space import NUM_BUCKETS
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import admitter
from tfps_plugin.variables.dynamic.shard import evictor
from tfps_plugin.variables.dynamic.shard import shard_parts
from tfps_plugin.variables.dynamic.shard import tallies
from tfps_plugin.variables.dynamic.shard.found import Asker
from tfps_plugin.variables.dynamic.shard.hash_index import HashIndex
from tfps_plugin.variables.dynamic.shard.rules import Rules
from tfps_plugin.variables.dynamic.shard.shard_directory import ShardDirectory
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts
from tfps_plugin.variables.dynamic.shard.tallies import Tallies

_SPACE = RowSpace.for_capacity(1000)
_INITIAL = InitialRows("normal", (0.0, 1.0), 5, 3, tf.float32)
_PER_BUCKET = _SPACE.rows_per_bucket - RowSpace.RESERVED
_ROOM = NUM_BUCKETS * _PER_BUCKET
_FIRST_SLOT = 0.5
_VECTOR = [tf.TensorSpec([None], tf.int64)]


class _Shard:
    """Variables of this process: rows, a slot, and what the rules need."""

    def __init__(
        self,
        admission: Admission | None = None,
        eviction: Eviction | None = None,
        dtype: str = "float32",
        seconds: Callable[[], tf.Tensor] = tf.timestamp,
        steps_per_update: int = 1,
    ) -> None:
        self._seconds = seconds
        size = _SPACE.num_rows
        self.rows = tf.Variable(tf.zeros([size, 3], dtype))
        self.records = tf.Variable(tf.zeros([size, 2], tf.int64))
        self.slot = tf.Variable(tf.fill([size, 3], _FIRST_SLOT))
        columns = evictor.usage_columns(eviction)
        self.counters: Any = None
        if (described := admitter.counters_of(admission)) is not None:
            _, per_row, dtype = described
            self.counters = tf.Variable(tf.zeros([size, per_row], dtype))
        self.usage = tf.Variable(tf.zeros([size, columns], tf.int64))
        self._parts = ShardParts(
            self.rows,
            self.records,
            self.usage,
            self.counters,
            (self.slot,),
        )
        self._rules = Rules(
            ("items",),
            _SPACE,
            _INITIAL,
            admission,
            eviction,
            steps_per_update,
        )
        self._trace()

    def clear(self) -> None:
        """Empties the table, as a restore would."""
        for each in (self.records, self._parts.counters):
            each.assign(tf.zeros_like(each))

    def continue_from(self, other: "_Shard") -> None:
        """Goes on with the variables of another one."""
        self.rows, self.records, self.slot = (
            other.rows,
            other.records,
            other.slot,
        )
        self._parts = other._parts
        self._trace()

    def _trace(self) -> None:
        """Begins with a new directory."""
        name = self._name = uuid.uuid4().hex
        self._tallies = Tallies(name, 1)
        self._directory = ShardDirectory(
            name,
            range(_SPACE.num_rows),
            self._parts,
            self._rules,
            self._seconds,
        )

        def find(asker: Asker, ids: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return self._directory.find(ids, asker).tensors

        self._find = {
            asker: tf.function(
                functools.partial(find, asker), _VECTOR, autograph=False
            )
            for asker in Asker
        }

    def train(self, ids: Sequence[int]) -> dict[int, int]:
        """Makes a step, which changes rows and slots; returns the rows."""
        found = self._found(Asker.STEP, ids)
        numbers = tf.constant(list(found.values()), tf.int32)
        for variable in (self.rows, self.slot):
            variable.scatter_update(
                tf.IndexedSlices(tf.fill([len(found), 3], 7.0), numbers)
            )
        return found

    def make(self, ids: Sequence[int]) -> dict[int, int]:
        """Finds rows as a step does, and changes nothing."""
        return self._found(Asker.STEP, ids)

    def import_(self, ids: Sequence[int]) -> dict[int, int]:
        """Finds rows as an import does, and changes nothing."""
        return self._found(Asker.IMPORT, ids)

    def are_theirs(self, found: dict[int, int]) -> list[bool]:
        """Returns whether late gradients for them may change these rows."""
        are_theirs = self._directory.are_theirs(
            tf.constant(list(found.values()), tf.int32),
            tf.constant(list(found), tf.int64),
        )
        return list(map(bool, are_theirs))

    def look(self, ids: Sequence[int]) -> dict[int, int]:
        return self._found(Asker.READER, ids)

    def _found(self, asker: Asker, ids: Sequence[int]) -> dict[int, int]:
        rows, are_present = self._find[asker](tf.constant(ids, tf.int64))
        found = {
            one: int(row)
            for one, row, is_present in zip(
                ids, rows.numpy(), are_present.numpy(), strict=True
            )
            if is_present
        }
        assert len(set(found.values())) == len(found)
        return found

    def num_places(self) -> int:
        """Returns the number of places that the hash table has."""
        # By its name, the table that is there.
        (handle,) = HashIndex(self._name, [1]).handles()
        keys, _ = tf.raw_ops.LookupTableExportV2(
            table_handle=handle,
            Tkeys=tf.int64,
            Tvalues=tf.int32,
        )
        return int(keys.shape[0])

    def tally(self, number: int) -> int:
        return int(self._tallies.read()[number, 0])

    def assert_new(self, ids: Sequence[int], found: dict[int, int]) -> None:
        first = _INITIAL.of(tf.constant(ids, tf.int64)).numpy()
        for one, expected in zip(ids, first, strict=True):
            np.testing.assert_array_equal(self.rows[found[one]], expected)
            np.testing.assert_array_equal(
                self.slot[found[one]], np.full(3, _FIRST_SLOT)
            )


def _ids_of_buckets(count: int, start: int = 0) -> np.ndarray:
    """Returns ids of each bucket, shape `(64, count)`."""
    ids = tf.range(start, start + 10_000, dtype=tf.int64)
    buckets = id_hashing.buckets_of(ids).numpy()
    return start + np.stack(
        [
            np.flatnonzero(buckets == bucket)[:count]
            for bucket in range(NUM_BUCKETS)
        ]
    )


def test_the_least_recent_rows_make_room() -> None:
    shard = _Shard(eviction=Eviction("least_recent"))
    for step in range(300):
        ids = range(step * 16, step * 16 + 16)
        kept = shard.train([1_000_000, *ids])
        assert set(kept) == {1_000_000, *ids}
    assert shard.tally(tallies.EVICTED) > 0
    assert shard.tally(tallies.WITHOUT_ROOM) == 0
    present = set(shard.look(range(300 * 16)))
    # A row that every step looks up stays; new ones stay, old ones go.
    assert 1_000_000 in shard.look([1_000_000])
    assert 0.6 * _ROOM < len(present) <= _ROOM
    assert present.issuperset(range(300 * 16 - 400, 300 * 16))
    assert not present & set(range(16 * 30))


def test_the_least_frequent_rows_make_room() -> None:
    shard = _Shard(eviction=Eviction("least_frequent"))
    frequent = list(range(2_000_000, 2_000_050))
    for _ in range(3):
        shard.train(frequent)
    for step in range(250):
        shard.train(range(step * 16, step * 16 + 16))
    # Not looked up for long, but more often than any other.
    assert set(shard.look(frequent)) == set(frequent)
    assert shard.tally(tallies.EVICTED) > 500


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_rows_of_smallest_norm_make_room(dtype: str) -> None:
    shard = _Shard(eviction=Eviction("smallest_norm"), dtype=dtype)
    random = np.random.default_rng(6)
    # The truth: the norms of the rows of each bucket.
    norms: list[dict[int, float]] = [{} for _ in range(NUM_BUCKETS)]
    most = int(_PER_BUCKET * evictor.SHARE)
    for step in range(240):
        ids = list(range(step * 16, step * 16 + 16))
        found = shard.make(ids)
        assert set(found) == set(ids)
        there = shard.look([one for each in norms for one in each])
        for of_bucket in norms:
            gone = set(of_bucket).difference(there)
            # Gradients for those of the last steps may be on their way.
            may_go = sorted(
                (norm, one)
                for one, norm in of_bucket.items()
                if one < (step - evictor.PROTECTED_LOOKUPS) * 16
            )
            assert gone in (set(), {one for _, one in may_go[:most]})
            for one in gone:
                del of_bucket[one]
        values = random.normal(size=(16, 3)) * random.choice([0.1, 1.0, 9.0])
        values = tf.cast(values, shard.rows.dtype)
        rows = list(found.values())
        shard.rows.scatter_update(tf.IndexedSlices(values, rows))
        found_norms = np.linalg.norm(values.numpy().astype("float32"), axis=1)
        for one, row, norm in zip(ids, rows, found_norms, strict=True):
            norms[row // _SPACE.rows_per_bucket][one] = norm
    assert shard.tally(tallies.WITHOUT_ROOM) == 0
    assert shard.tally(tallies.EVICTED) > 500


def test_a_row_that_comes_back_begins_anew() -> None:
    shard = _Shard(eviction=Eviction("least_recent"))
    shard.train([3, 4])
    for step in range(300):
        shard.train(range(100 + step * 16, 116 + step * 16))
    assert not shard.look([3, 4])
    shard.assert_new([3, 4], shard.make([3, 4]))


def test_late_gradients_do_not_reach_rows_that_went_to_other_ids() -> None:
    shard = _Shard(eviction=Eviction("least_recent"))
    found = shard.train([3, 4])
    assert shard.are_theirs(found) == [True, True]
    for step in range(300):
        shard.train([4, *range(100 + step * 16, 116 + step * 16)])
    assert shard.are_theirs(found) == [False, True]


def test_late_gradients_of_id_0_do_not_reach_rows_that_are_free() -> None:
    shard = _Shard(eviction=Eviction("least_recent"))
    found = shard.train([0, 4])
    for step in range(300):
        shard.train([4, *range(100 + step * 16, 116 + step * 16)])
        if not shard.records.numpy()[found[0]].any():
            break
    else:
        pytest.fail("The row was never free after a step.")
    assert shard.are_theirs(found) == [False, True]


def test_rows_that_no_step_has_seen_for_long_go() -> None:
    shard = _Shard(eviction=Eviction(None, unseen_steps=5))
    found = shard.train([1, 2, 3])
    for _ in range(4):
        shard.train([2])
    # A row that was seen five steps ago is kept.
    assert shard.make([1, 2]) == {1: found[1], 2: found[2]}
    np.testing.assert_array_equal(shard.rows[found[1]], np.full(3, 7.0))
    for _ in range(6):
        shard.train([2])
    # Readers see the others until a step asks for them.
    assert shard.look([1, 2, 3]) == found
    np.testing.assert_array_equal(shard.slot[found[1]], np.full(3, 7.0))
    shard.assert_new([1], shard.make([1]))
    # They make room, too.
    for step in range(300):
        ids = range(100 + step * 16, 116 + step * 16)
        assert len(shard.train(ids)) == 16
    assert not shard.look([3])


def test_a_row_that_begins_anew_makes_no_room() -> None:
    shard = _Shard(eviction=Eviction(None, unseen_steps=5))
    old_BC = _ids_of_buckets(_PER_BUCKET)
    old = old_BC.ravel().tolist()
    shard.train(old)
    for _ in range(6):
        shard.train([])
    # Those come back, and others take the places of all that do not.
    again_BC = old_BC[:, ::2]
    new_BC = _ids_of_buckets(_PER_BUCKET - again_BC.shape[1], 10_000)
    ids = [*again_BC.ravel().tolist(), *new_BC.ravel().tolist()]
    found = shard.make(ids)
    shard.assert_new(ids, found)
    assert set(shard.look([*old, *ids])) == set(ids)


def test_rows_are_old_by_the_time_in_which_they_could_be_seen() -> None:
    time = tf.Variable(1e9, dtype=tf.float64)
    rule = Eviction("least_recent", unseen_seconds=60)
    shard = _Shard(eviction=rule, seconds=time.read_value)
    found = shard.train([1, 2, 3])
    time.assign_add(50.0)
    shard.train([2])
    time.assign_add(9.0)
    assert shard.train([1]) == {1: found[1]}
    np.testing.assert_array_equal(shard.rows[found[1]], np.full(3, 7.0))
    time.assign_add(2.0)
    # Readers see all of them, however old.
    assert shard.look([1, 2, 3]) == found
    # Resumed a year later: no row could be seen meanwhile.
    other = _Shard(eviction=rule, seconds=time.read_value)
    other.continue_from(shard)
    time.assign_add(3e7)
    assert other.look([1, 2, 3]) == found
    assert other.make([1, 2]) == {1: found[1], 2: found[2]}
    np.testing.assert_array_equal(other.rows[found[2]], np.full(3, 7.0))
    time.assign_add(2.0)
    other.assert_new([3], other.make([3]))
    time.assign_add(70.0)
    assert other.look([1, 2, 3]) == found
    other.assert_new([1, 2, 3], other.make([1, 2, 3]))


def test_steps_go_on_where_the_records_end() -> None:
    shard = _Shard(eviction=Eviction(None, unseen_steps=5))
    found = shard.train([1])
    for _ in range(5):
        shard.train([2])
    saved = [
        tf.constant(each.numpy())
        for each in (shard.records, shard.usage, shard.rows)
    ]
    for step in range(20):
        shard.train([2, 3 + step])
    for each, value in zip(
        (shard.records, shard.usage, shard.rows), saved, strict=True
    ):
        each.assign(value)
    assert shard.make([1]) == found
    np.testing.assert_array_equal(shard.rows[found[1]], np.full(3, 7.0))


def test_without_an_order_a_full_bucket_is_an_error() -> None:
    shard = _Shard(eviction=Eviction(None, unseen_steps=5))
    shard.make(range(300))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"items.* is full"
    ):
        shard.make(range(300, 300 + _ROOM))
    assert set(shard.look(range(300 + _ROOM))) == set(range(300))
    assert shard.tally(tallies.WITHOUT_ROOM) == 0
    # When they are old enough, all of them make room at once.
    for _ in range(6):
        shard.make([])
    ids = _ids_of_buckets(_PER_BUCKET, 10_000).ravel().tolist()
    assert len(shard.make(ids)) == _ROOM


def test_a_bucket_loses_as_many_rows_as_it_needs() -> None:
    shard = _Shard(eviction=Eviction("least_recent"))
    ids = list(range(_ROOM))
    for start in range(0, _ROOM, 100):
        shard.train(ids[start : start + 100])
    for _ in range(evictor.PROTECTED_LOOKUPS + 1):
        shard.train([])
    assert shard.tally(tallies.WITHOUT_ROOM) < 0.1 * _ROOM
    before = shard.tally(tallies.WITHOUT_ROOM)
    # Some buckets need a third of their rows at once.
    assert len(shard.train(range(10_000, 10_000 + _ROOM // 4))) == _ROOM // 4
    assert shard.tally(tallies.WITHOUT_ROOM) == before


def test_rows_of_flight_are_protected(
    capfd: pytest.CaptureFixture[str],
) -> None:
    shard = _Shard(eviction=Eviction("least_recent"))
    ids = list(range(_ROOM * 2))
    for start in range(0, len(ids), 500):
        shard.train(ids[start : start + 500])
    # Three steps have filled it, and their gradients may be on their way.
    assert shard.tally(tallies.WITHOUT_ROOM) > 0
    assert shard.tally(tallies.EVICTED) == 0
    # It is told once, with the name of the table.
    told = capfd.readouterr().err
    assert told.count("WARNING: The table 'items' has no room") == 1


def test_rows_of_local_rounds_are_protected_for_as_many_steps() -> None:
    # With an order, a full cell loses the rows that were seen least recently.
    shard = _Shard(eviction=Eviction("least_recent"), steps_per_update=3)
    early = shard.train(range(100))
    for step in range(3 * evictor.PROTECTED_LOOKUPS):
        shard.train(range(1000 + 100 * step, 1100 + 100 * step))
        assert shard.look(range(100)) == early
    for step in range(300, 320):
        shard.train(range(1000 + 100 * step, 1100 + 100 * step))
    assert not shard.look(range(100))


def test_ids_that_collide_in_the_index_have_rows_of_their_own() -> None:
    shard = _Shard(eviction=Eviction("least_recent", unseen_steps=5))
    shard.make([5])
    random = np.random.default_rng(2)
    # They are all spread to numbers of one place. TensorFlow's table inserts a
    # key at the first removed place that it meets, even if the key is in a
    # later one.
    places = 1 + shard.num_places() * np.arange(20_000, dtype=np.uint64)
    candidates = (places ^ (places >> 32)) * np.uint64(pow(GOLDEN, -1, 2**64))
    candidates = tf.constant((candidates ^ (candidates >> 32)).view(np.int64))
    assert np.all(
        id_hashing.spread(candidates).numpy() % shard.num_places() == 1
    )
    are_in_one = tf.equal(id_hashing.buckets_of(candidates), 3)
    pool = tf.boolean_mask(candidates, are_in_one).numpy()[: 2 * _PER_BUCKET]
    pool = pool.tolist()
    for _ in range(600):
        shard.train(random.choice(pool, 3, replace=False).tolist())
        ids, are_used = shard.records.numpy().T
        rows = np.flatnonzero(are_used)
        expected = dict(zip(ids[rows].tolist(), rows.tolist(), strict=True))
        expected.pop(5, None)
        assert shard.look(pool) == expected
    assert shard.tally(tallies.EVICTED) > 100


def test_the_index_is_filled_anew_when_its_places_run_out() -> None:
    shard = _Shard(eviction=Eviction("least_recent"))
    shard.make([5])
    before = shard.num_places()
    for step in range(800):
        ids = range(step * 20, step * 20 + 20)
        assert len(shard.make(ids)) == 20
    assert shard.num_places() == before
    assert shard.tally(tallies.MADE) == 800 * 20
    assert shard.tally(tallies.MADE) - shard.tally(tallies.EVICTED) == len(
        shard.look(range(800 * 20))
    )


def test_rows_that_begin_anew_count_as_evicted() -> None:
    # The lowest of all ids has a row that no other id can have.
    ids = [tf.int64.min, *range(20)]
    shard = _Shard(eviction=Eviction(unseen_steps=5))
    shard.train(ids)
    for _ in range(6):
        shard.train([100])
    shard.assert_new(ids, shard.make(ids))
    shard.make(ids)
    assert shard.tally(tallies.EVICTED) == len(ids)
    assert shard.tally(tallies.MADE) == 2 * len(ids) + 1


@pytest.mark.parametrize("min_lookups", [2, 3])
def test_ids_are_admitted_after_some_lookups(min_lookups: int) -> None:
    shard = _Shard(Admission(min_lookups))
    ids = list(range(50))
    for _ in range(min_lookups - 1):
        # Few of so few ids share both counters.
        assert len(shard.train(ids)) <= 1
    found = shard.make(ids)
    assert set(found) == set(ids)
    assert shard.tally(tallies.NOT_ADMITTED) >= 49 * (min_lookups - 1)


@hypothesis.given(
    st.lists(st.lists(st.integers(0, 30), max_size=8, unique=True), max_size=12)
)
@hypothesis.settings(max_examples=15, deadline=None)
def test_no_id_is_admitted_late(steps: list[list[int]]) -> None:
    shard = _admitting
    base = shard.tally(tallies.CLOCK) * 1000 if steps else 0
    counts: collections.Counter[int] = collections.Counter()
    for ids in steps:
        counts.update(ids)
        found = shard.make([base + one for one in ids])
        late = {one for one in ids if counts[one] >= 3}
        assert {base + one for one in late} <= set(found)


@hypothesis.given(
    st.lists(
        st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True),
        max_size=12,
    ),
    st.integers(0, 12),
)
@hypothesis.settings(max_examples=15, deadline=None)
def test_exact_counts_are_those_of_a_dict(
    steps: list[list[int]], moved_at: int
) -> None:
    _counting.clear()
    counts: collections.Counter[int] = collections.Counter()
    for number, ids in enumerate(steps):
        counts.update(ids)
        shard = _counting if number < moved_at else _counting_elsewhere
        found = shard.make(ids)
        assert set(found) == {one for one in ids if counts[one] >= 3}
        assert shard.tally(tallies.FORGOTTEN) == 0


def test_an_evicted_id_is_counted_from_the_start() -> None:
    shard = _Shard(Admission(2, counts="exact"), Eviction(None, unseen_steps=3))
    shard.make([7])
    assert set(shard.make([7])) == {7}
    for _ in range(5):
        shard.make([8])
    assert not shard.make([7])
    assert set(shard.make([7])) == {7}


def test_a_chance_comes_after_the_count() -> None:
    tf.random.set_seed(3)
    shard = _Shard(Admission(2, probability=0.5, counts="exact"))
    ids = range(400)
    assert not shard.make(ids)
    first = set(shard.make(ids))
    assert 150 < len(first) < 250
    # Those that had no luck are not counted anew.
    assert 80 < len(set(shard.make(ids)) - first) < 130


def test_ids_that_are_rare_stay_out_however_many_come() -> None:
    shard = _Shard(Admission(2))
    num_ids = 0
    for start in range(0, 40_000, 200):
        shard.make(range(10_000_000 + start, 10_000_200 + start))
        num_ids += 200
    # Each came once. Those that share both counters with others got in.
    assert shard.tally(tallies.MADE) < 0.05 * num_ids


def test_rows_are_admitted_by_chance() -> None:
    tf.random.set_seed(3)
    shard = _Shard(Admission(probability=0.25))
    found = shard.make(range(800))
    assert 130 < len(found) < 270


def test_an_import_lets_no_row_go() -> None:
    shard = _Shard(eviction=Eviction("least_recent"))
    shard.train(range(100))
    for _ in range(evictor.PROTECTED_LOOKUPS + 1):
        shard.train([7])
    # A step could let the others go.
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"items.* is full"
    ):
        shard.import_(range(50, 3000))
    assert set(shard.import_(range(50, 150))) == set(range(50, 150))
    assert set(shard.look(range(3000))) == set(range(150))
    assert shard.tally(tallies.EVICTED) == 0


def test_an_import_changes_no_slots_and_makes_rows_seen() -> None:
    shard = _Shard(eviction=Eviction(None, unseen_steps=5))
    found = shard.train([1, 2])
    for _ in range(7):
        shard.train([3])
    asked = shard.tally(tallies.ASKED)
    assert shard.import_([1]) == {1: found[1]}
    assert shard.tally(tallies.ASKED) == asked
    # The other one has not been seen for long, and begins anew.
    assert shard.make([1, 2]) == found
    np.testing.assert_array_equal(shard.slot[found[1]], np.full(3, 7.0))
    shard.assert_new([2], found)


def test_an_imported_id_waits_no_longer() -> None:
    shard = _Shard(Admission(3, counts="exact"))
    shard.make([5, 6])
    assert np.any(shard.counters[:, 4:] > 0)
    shard.import_([5, 6])
    assert not np.any(shard.counters[:, 4:] > 0)


_admitting = _Shard(Admission(3))
# It must be there before its tallies are read.
_admitting.make([-1])
_counting = _Shard(Admission(3, counts="exact"))
# Another directory of the same variables, as on another ps.
_counting_elsewhere = _Shard(Admission(3, counts="exact"))
_counting_elsewhere.continue_from(_counting)


def test_records_mark_the_rows_that_are_used() -> None:
    shard = _Shard(eviction=Eviction("least_recent"))
    for step in range(200):
        shard.train(range(step * 16, step * 16 + 16))
    records = shard.records.numpy()
    used = records[records[:, shard_parts.IS_USED] > 0, shard_parts.ID]
    assert sorted(used) == sorted(shard.look(range(200 * 16)))
