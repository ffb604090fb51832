"""Compares counts of the ids of many features with NumPy."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tfps_plugin.training.embedding.id_counts import CountsOfEach
from tfps_plugin.training.embedding.id_counts import EqualCounts
from tfps_plugin.training.embedding.id_counts import IdCounts


@st.composite
def _counts(draw: st.DrawFn) -> tuple[IdCounts, list[int]]:
    """Draws counts of either kind, and their values."""
    num_features = draw(st.integers(1, 6))
    if draw(st.booleans()):
        batch = draw(st.integers(0, 4))
        ids_FB = tf.zeros([num_features, batch], tf.int64)
        return EqualCounts(ids_FB), [batch] * num_features
    counts = draw(
        st.lists(
            st.integers(0, 4), min_size=num_features, max_size=num_features
        )
    )
    return CountsOfEach([tf.zeros([n], tf.int64) for n in counts]), counts


@settings(deadline=None, max_examples=60)
@given(_counts(), st.randoms(use_true_random=False))
def test_everything_belongs_to_its_feature(
    counted: tuple[IdCounts, list[int]], random: Any
) -> None:
    counts, numbers = counted
    of_features = [10 * feature for feature in range(len(numbers))]
    features_N = np.repeat(np.arange(len(numbers)), numbers)
    known = counts.of_each_id(of_features, tf.int64)
    assert known.dtype == tf.int64
    np.testing.assert_array_equal(
        np.broadcast_to(known, features_N.shape), 10 * features_N
    )
    np.testing.assert_array_equal(
        counts.features_of(tf.range(len(features_N), dtype=tf.int64)),
        features_N,
    )
    order = random.sample(range(len(numbers)), len(numbers))
    values_N = np.arange(len(features_N))
    arranged_N = counts.arranged(tf.constant(values_N), order)
    pieces = counts.cut(tf.stack([arranged_N, -arranged_N], 1), order)
    assert len(pieces) == len(numbers)
    for feature, piece in zip(order, pieces, strict=True):
        mine = values_N[features_N == feature]
        np.testing.assert_array_equal(piece, np.stack([mine, -mine], 1))


@pytest.mark.parametrize(
    "counts",
    [
        EqualCounts(tf.zeros([3, 2], tf.int64)),
        CountsOfEach([tf.zeros([n], tf.int64) for n in (1, 0, 2)]),
    ],
)
def test_what_is_the_same_of_all_features_is_one_number(
    counts: IdCounts,
) -> None:
    same = counts.of_each_id([7, 7, 7], tf.int32)
    assert same.shape.rank == 0
    assert (same.dtype, int(same)) == (tf.int32, 7)
