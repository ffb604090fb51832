"""Tests of a directory against a plain dict of rows."""

import concurrent.futures
import threading
import uuid
from collections.abc import Sequence

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import stateful
from hypothesis import strategies as st

from tfps_plugin.variables.dynamic import id_hashing
from tfps_plugin.variables.dynamic.initial_rows import InitialRows
from tfps_plugin.variables.dynamic.row_space import NUM_BUCKETS
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import shard_parts
from tfps_plugin.variables.dynamic.shard.found import Asker
from tfps_plugin.variables.dynamic.shard.rules import Rules
from tfps_plugin.variables.dynamic.shard.shard_directory import ShardDirectory
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts

_LOWEST = -(2**63)
_DEADLINE_SECONDS = 60.0
_NUM_THREADS = 8
_SPACE = RowSpace.for_capacity(500)
_INITIAL = InitialRows("normal", (0.0, 1.0), 5, 3, tf.float32)
_POOL = [
    *range(_LOWEST, _LOWEST + 6),
    -1,
    0,
    1,
    2**63 - 1,
    *np.random.default_rng(3).integers(_LOWEST, 2**63 - 1, 60).tolist(),
]
_IDS = st.lists(st.sampled_from(_POOL), max_size=12, unique=True)


class _Shard:
    """Variables of this process, with several directories to go to."""

    def __init__(
        self,
        num_directories: int = 1,
        numbers: range = range(_SPACE.num_rows),
        space: RowSpace = _SPACE,
    ) -> None:
        self.numbers = numbers
        self._space = space
        self.rows = tf.Variable(tf.zeros([len(numbers), 3]))
        self.records = tf.Variable(tf.zeros([len(numbers), 2], tf.int64))
        self._functions = [self._traced() for _ in range(num_directories)]
        self._now = 0

    def clear(self) -> None:
        """Empties the table, as a restore would."""
        self.rows.assign(tf.zeros_like(self.rows))
        self.records.assign(tf.zeros_like(self.records))

    def go_elsewhere(self) -> None:
        """Goes on with another directory, as on another ps."""
        self._now = (self._now + 1) % len(self._functions)

    def _traced(self) -> tuple[tf.types.experimental.ConcreteFunction, ...]:
        directory = ShardDirectory(
            uuid.uuid4().hex,
            self.numbers,
            ShardParts(self.rows, self.records),
            Rules("items", self._space, _INITIAL),
        )

        def find(ids: tf.Tensor, asker: Asker) -> tuple[tf.Tensor, ...]:
            return directory.find(ids, asker).tensors

        traced = tf.function(find, autograph=False)
        vector = tf.TensorSpec([None], tf.int64)
        return tuple(
            traced.get_concrete_function(vector, asker)
            for asker in (Asker.STEP, Asker.READER)
        )

    def make(self, ids: Sequence[int]) -> np.ndarray:
        training, _ = self._functions[self._now]
        rows, are_present = training(tf.constant(ids, tf.int64))
        assert np.all(are_present)
        return rows.numpy()

    def look(self, ids: Sequence[int]) -> dict[int, int]:
        """Returns the rows of those ids that have one."""
        _, looking = self._functions[self._now]
        rows, are_present = looking(tf.constant(ids, tf.int64))
        return {
            one: int(row)
            for one, row, is_present in zip(
                ids, rows.numpy(), are_present.numpy(), strict=True
            )
            if is_present
        }


_shard = _Shard(num_directories=3)


class Directories(stateful.RuleBasedStateMachine):
    """Makes rows, writes them, moves and restores; a dict is the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.shard = _shard
        self.shard.clear()
        self.truth: dict[int, np.ndarray] = {}
        self.saved: tuple[np.ndarray, np.ndarray] | None = None
        self.saved_truth: dict[int, np.ndarray] = {}

    @stateful.rule(ids=_IDS, value=st.integers(-9, 9))
    def train(self, ids: list[int], value: int) -> None:
        rows = self.shard.make(ids)
        assert len(set(rows)) == len(ids)
        for one, row in zip(ids, rows, strict=True):
            if one not in self.truth:
                first = _INITIAL.of(tf.constant([one], tf.int64))
                self.truth[one] = first.numpy()[0]
            np.testing.assert_array_equal(
                self.shard.rows[int(row)], self.truth[one]
            )
            self.truth[one] = np.full(3, value, np.float32)
        self.shard.rows.scatter_update(
            tf.IndexedSlices(tf.fill([len(ids), 3], float(value)), rows)
        )

    @stateful.rule(ids=_IDS)
    def evaluate(self, ids: list[int]) -> None:
        found = self.shard.look(ids)
        assert set(found) == set(ids) & set(self.truth)
        for one, row in found.items():
            np.testing.assert_array_equal(self.shard.rows[row], self.truth[one])

    @stateful.rule()
    def move(self) -> None:
        self.shard.go_elsewhere()

    @stateful.rule()
    def save(self) -> None:
        self.saved = (
            np.array(self.shard.rows.numpy()),
            np.array(self.shard.records.numpy()),
        )
        self.saved_truth = dict(self.truth)

    @stateful.precondition(lambda self: self.saved is not None)
    @stateful.rule()
    def restore(self) -> None:
        assert self.saved is not None
        rows, records = self.saved
        self.shard.rows.assign(rows)
        self.shard.records.assign(records)
        self.truth = dict(self.saved_truth)

    @stateful.invariant()
    def every_row_is_there(self) -> None:
        found = self.shard.look(_POOL)
        assert set(found) == set(self.truth)
        assert len(set(found.values())) == len(found)


Directories.TestCase.settings = hypothesis.settings(
    max_examples=10, stateful_step_count=12, deadline=None
)
test_rows_are_those_of_a_dict = Directories.TestCase


def test_a_full_shard_names_the_table() -> None:
    shard = _Shard()
    shard.make(_POOL)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"The table .*items.* is full"
    ):
        shard.make(range(10_000))
    # Nothing was made, and it goes on.
    assert set(shard.look([5, 6, *_POOL])) == set(_POOL)
    shard.make([5])


def test_the_hash_table_never_grows() -> None:
    shard = _Shard()
    random = np.random.default_rng(1)
    ids = random.integers(_LOWEST, 2**63 - 1, 500).tolist()
    for start in range(0, 500, 50):
        shard.make(ids[start : start + 50])
    assert len(shard.look(ids)) == 500


def test_only_rows_of_ids_are_marked_as_used() -> None:
    shard = _Shard()
    (row,) = shard.make([7])
    records = shard.records.numpy()
    assert records[row, shard_parts.ID] == 7
    assert np.count_nonzero(records[:, shard_parts.IS_USED]) == 1


def test_rows_of_another_layout_are_found_when_the_first_one_is_back() -> None:
    half = range(_SPACE.num_rows // 2, _SPACE.num_rows)
    buckets = id_hashing.buckets_of(tf.constant(_POOL, tf.int64)).numpy()
    ids = [
        one
        for one, bucket in zip(_POOL, buckets, strict=True)
        if bucket >= NUM_BUCKETS // 2
    ]
    assert len(ids) > 20
    part, whole = _Shard(numbers=half), _Shard()
    part.make(ids[:9])
    # One parameter server leaves; another one holds its rows, too.
    for one, other in (
        (whole.rows, part.rows),
        (whole.records, part.records),
    ):
        one[half.start :].assign(other)
    assert set(whole.look(ids)) == {*ids[:9]}
    whole.make(ids[9:])
    # It is back, and finds what the first one has kept all the time.
    part.rows.assign(whole.rows[half.start :])
    part.records.assign(whole.records[half.start :])
    found = part.look(ids)
    assert found == {
        one: row - half.start for one, row in whole.look(ids).items()
    }
    part.make(ids)
    used = part.records.numpy()[:, shard_parts.IS_USED]
    assert np.count_nonzero(used) == len(ids)


def test_lookups_that_build_the_index_at_once_find_every_row() -> None:
    # Large, so that it takes a moment.
    space = RowSpace.for_capacity(100_000)
    shard = _Shard(numbers=range(space.num_rows), space=space)
    random = np.random.default_rng(2)
    ids = random.integers(_LOWEST + 3, 2**63 - 1, 90_000).tolist()
    shard.make(ids)
    some = ids[::900]
    barrier = threading.Barrier(_NUM_THREADS)

    def look_up_first() -> int:
        barrier.wait(_DEADLINE_SECONDS)
        return len(shard.look(some))

    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as threads:
        for number in range(40):
            # As in a process that has just read a model.
            shard.records.scatter_nd_update([[0, 0]], [-2 - number])
            found = [threads.submit(look_up_first) for _ in range(_NUM_THREADS)]
            for each in found:
                assert each.result(_DEADLINE_SECONDS) == len(some)
