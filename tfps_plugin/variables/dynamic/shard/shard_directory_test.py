"""Tests of the directory of one shard; `histories_test` has its histories."""

import concurrent.futures
import functools
import threading
import uuid
from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.variables.dynamic.ids import id_hashing
from tfps_plugin.variables.dynamic.initial_rows import InitialRows
from tfps_plugin.variables.dynamic.row_space import NUM_BUCKETS
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import shard_parts
from tfps_plugin.variables.dynamic.shard.found import Asker
from tfps_plugin.variables.dynamic.shard.hash_index import HashIndex
from tfps_plugin.variables.dynamic.shard.rules import Rules
from tfps_plugin.variables.dynamic.shard.shard_directory import ShardDirectory
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts

_LOWEST = -(2**63)
_DEADLINE_SECONDS = 60.0
_NUM_THREADS = 8
_VECTOR = [tf.TensorSpec([None], tf.int64)]
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


class _Shard:
    """Variables of this process, and their directory."""

    def __init__(
        self,
        numbers: range = range(_SPACE.num_rows),
        space: RowSpace = _SPACE,
    ) -> None:
        self.numbers = numbers
        self.rows = tf.Variable(tf.zeros([len(numbers), 3]))
        self.records = tf.Variable(tf.zeros([len(numbers), 2], tf.int64))
        self.name = uuid.uuid4().hex
        directory = ShardDirectory(
            self.name,
            numbers,
            ShardParts(self.rows, self.records),
            Rules(("items",), space, _INITIAL),
        )

        def find(asker: Asker, ids: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return directory.find(ids, asker).tensors

        self._find = {
            asker: tf.function(
                functools.partial(find, asker), _VECTOR, autograph=False
            )
            for asker in Asker
        }

    def num_places(self) -> int:
        """Returns the number of places that the hash table has."""
        # By its name, the table that is there.
        (handle,) = HashIndex(self.name, [1]).handles()
        keys, _ = tf.raw_ops.LookupTableExportV2(
            table_handle=handle,
            Tkeys=tf.int64,
            Tvalues=tf.int32,
        )
        return int(keys.shape[0])

    def make(self, ids: Sequence[int]) -> np.ndarray:
        rows, are_present = self._find[Asker.STEP](tf.constant(ids, tf.int64))
        assert np.all(are_present)
        return rows.numpy()

    def look(self, ids: Sequence[int]) -> dict[int, int]:
        """Returns the rows of those ids that have one."""
        rows, are_present = self._find[Asker.READER](tf.constant(ids, tf.int64))
        return {
            one: int(row)
            for one, row, is_present in zip(
                ids, rows.numpy(), are_present.numpy(), strict=True
            )
            if is_present
        }


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
    shard.make([5])
    before = shard.num_places()
    # Every row of the table.
    candidates = tf.range(10_000, dtype=tf.int64)
    buckets = id_hashing.buckets_of(candidates).numpy()
    count = _SPACE.rows_per_bucket - RowSpace.RESERVED
    ids = np.concatenate(
        [np.flatnonzero(buckets == b)[:count] for b in range(NUM_BUCKETS)]
    ).tolist()
    assert len(ids) == NUM_BUCKETS * count
    for start in range(0, len(ids), 50):
        shard.make(ids[start : start + 50])
    assert len(shard.look(ids)) == len(ids)
    assert shard.num_places() == before


def test_records_of_another_table_are_noticed_though_a_seed_is_set() -> None:
    shards = _Shard(), _Shard()
    for shard, ids in zip(shards, ([1, 2], [3, 4]), strict=True):
        # Both make rows as often, and draw the same random numbers.
        tf.random.set_seed(1)
        shard.make(ids)
    shards[1].records.assign(shards[0].records)
    assert set(shards[1].look([1, 2, 3, 4])) == {1, 2}


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
    shard.look(some)
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
