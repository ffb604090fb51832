"""Tests of the hashes of ids, against the same arithmetic in Python."""

import hypothesis
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tfps_plugin.exports.first_rows import start_of
from tfps_plugin.variables.dynamic.ids import id_hashing
from tfps_plugin.variables.dynamic.row_space import NUM_BUCKETS

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_IDS = st.lists(
    st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20, unique=True
)


def _mixed(number: int) -> int:
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


@hypothesis.given(_IDS)
def test_buckets_are_those_of_splitmix64(ids: list[int]) -> None:
    found = id_hashing.buckets_of(tf.constant(ids, tf.int64))
    expected = [_mixed((i + _GOLDEN) & _MASK) >> 58 for i in ids]
    np.testing.assert_array_equal(found, expected)


def test_any_pattern_of_ids_spreads_over_the_buckets() -> None:
    for step in (1, 2, 64, 4096, 2**40):
        ids = tf.range(1 << 14, dtype=tf.int64) * step
        counts = np.bincount(id_hashing.buckets_of(ids), minlength=NUM_BUCKETS)
        # The mean is 256, its standard deviation 16.
        assert counts.min() > 256 - 6 * 16
        assert counts.max() < 256 + 6 * 16


@hypothesis.given(_IDS)
def test_ids_are_spread_as_by_the_same_arithmetic(ids: list[int]) -> None:
    numbers = [i & _MASK for i in ids]
    products = [(i ^ (i >> 32)) * _GOLDEN & _MASK for i in numbers]
    expected = np.array([p ^ (p >> 32) for p in products], np.uint64)
    found = id_hashing.spread(tf.constant(ids, tf.int64)).numpy()
    np.testing.assert_array_equal(found, expected.astype(np.int64))
    assert len(set(found.tolist())) == len(ids)


def test_any_pattern_of_ids_spreads_over_places() -> None:
    for step in (1, 2, 4096, 2**24, 2**32, 2**40, 2**48):
        ids = tf.range(1 << 14, dtype=tf.int64) * step
        places = id_hashing.spread(ids).numpy() % (1 << 15)
        # Random ones would have seven ids in one place, at most.
        assert np.bincount(places).max() < 20


@hypothesis.given(_IDS, st.integers(0, 2**63))
@hypothesis.settings(max_examples=30)
def test_numbers_of_an_id_do_not_depend_on_others(
    ids: list[int], seed: int
) -> None:
    together = id_hashing.uniform(tf.constant(ids, tf.int64), 3, start_of(seed))
    alone = id_hashing.uniform(
        tf.constant(ids[-1:], tf.int64), 3, start_of(seed)
    )
    np.testing.assert_array_equal(together[-1:], alone)
    traced = tf.function(id_hashing.uniform, autograph=False)
    np.testing.assert_array_equal(
        traced(tf.constant(ids, tf.int64), 3, start_of(seed)), together
    )


def test_numbers_are_uniform_and_independent() -> None:
    drawn = id_hashing.uniform(
        tf.range(100_000, dtype=tf.int64), 4, start_of(1)
    ).numpy()
    assert 0.0 < drawn.min() < 1e-4
    assert 1.0 - 1e-4 < drawn.max() < 1.0
    np.testing.assert_allclose(drawn.mean(0), 0.5, atol=0.005)
    np.testing.assert_allclose(drawn.std(0), 12**-0.5, atol=0.005)
    # Neither columns nor neighbouring ids, nor seeds, are alike.
    other = id_hashing.uniform(
        tf.range(100_000, dtype=tf.int64), 4, start_of(2)
    ).numpy()
    for a, b in (
        (drawn[:, 0], drawn[:, 1]),
        (drawn[:-1, 0], drawn[1:, 0]),
        (drawn[:-1, 1], drawn[1:, 0]),
        (drawn[:, 0], other[:, 0]),
    ):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.02
