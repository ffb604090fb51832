"""Tests of exact counts in one crowded set, against plain Python."""

import hypothesis
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tfps_plugin.variables.dynamic.cells import Cells
from tfps_plugin.variables.dynamic.ids import id_hashing
from tfps_plugin.variables.dynamic.row_space import NUM_BUCKETS
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard.waiting_counts import ENTRIES_PER_SET
from tfps_plugin.variables.dynamic.shard.waiting_counts import NUM_COLUMNS
from tfps_plugin.variables.dynamic.shard.waiting_counts import WaitingCounts

# A bucket of one set.
_SPACE = RowSpace((6,))
_LOWEST = -(2**63)
_MOST = 5


def _ids_of_one_bucket(number: int) -> list[int]:
    candidates = np.concatenate(
        [np.arange(_LOWEST, _LOWEST + 3), np.arange(-1500, 1500)]
    )
    buckets = id_hashing.buckets_of(tf.constant(candidates)).numpy()
    bucket = buckets[np.flatnonzero(candidates == 0)[0]]
    chosen: list[int] = candidates[buckets == bucket].tolist()
    # Zero, which free entries hold too, among them.
    return [0, *(one for one in chosen if one)][:number]


_POOL = _ids_of_one_bucket(24)
_variable = tf.Variable(tf.zeros([_SPACE.num_rows, NUM_COLUMNS], tf.int64))
_counts = WaitingCounts(_variable, Cells(_SPACE, range(NUM_BUCKETS)))
_VECTOR = tf.TensorSpec([None], tf.int64)
_counted = tf.function(
    lambda ids: _counts.counted(ids, _MOST), [_VECTOR], autograph=False
)


@tf.function(input_signature=[_VECTOR], autograph=False)
def _forget(ids: tf.Tensor) -> None:
    _counts.forget(ids)


@hypothesis.given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.lists(st.sampled_from(_POOL), max_size=20, unique=True),
        ),
        max_size=20,
    )
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_counts_are_exact_while_a_set_has_room(
    steps: list[tuple[bool, list[int]]],
) -> None:
    _variable.assign(tf.zeros_like(_variable))
    truth: dict[int, int] = {}
    # Ids that were looked up since the last lookup of each one, and with it.
    since: dict[int, set[int]] = {}
    num_forgotten = 0
    for is_lookup, ids in steps:
        if not is_lookup:
            _forget(tf.constant(ids, tf.int64))
            for one in ids:
                truth.pop(one, None)
                since.pop(one, None)
            continue
        counts, number = _counted(tf.constant(ids, tf.int64))
        num_forgotten += int(number[0])
        for one, count in zip(ids, counts.numpy(), strict=True):
            expected = min(truth.get(one, 0) + 1, _MOST)
            if len(since.get(one, ())) > ENTRIES_PER_SET and count == 1:
                assert num_forgotten > 0
            else:
                assert count == expected
            truth[one] = count
        for others in since.values():
            others.update(ids)
        since.update({one: set(ids) for one in ids})
    if len({one for _, ids in steps for one in ids}) <= ENTRIES_PER_SET:
        assert num_forgotten == 0


def test_few_are_forgotten_while_no_more_wait_than_there_are_rows() -> None:
    space = RowSpace.for_capacity(20_000)
    variable = tf.Variable(tf.zeros([space.num_rows, NUM_COLUMNS], tf.int64))
    counts = WaitingCounts(variable, Cells(space, range(NUM_BUCKETS)))
    ids = np.random.default_rng(5).integers(_LOWEST, 2**63 - 1, 20_000)
    for expected in (1, 2):
        found, num_forgotten = counts.counted(tf.constant(ids), _MOST)
        assert int(num_forgotten[0]) <= 2
        assert np.count_nonzero(found.numpy() != expected) <= 2
