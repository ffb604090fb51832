"""Tests of the weights of examples."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tfps_plugin.training.synchronous.sums import example_weights


def _mean(values: list[float], sizes: list[int]) -> np.ndarray:
    """Returns the mean as workers and a parameter server make it."""
    weights = [example_weights.of(size, tf.float32) for size in sizes]
    total = tf.add_n(
        [
            tf.constant(value) * weight
            for value, weight in zip(values, weights, strict=True)
        ]
    )
    mean: np.ndarray = (
        total / example_weights.of(sum(sizes), tf.float32)
    ).numpy()
    return mean


@hypothesis.given(
    st.lists(
        st.tuples(
            st.integers(-(2**24), 2**24).map(lambda x: x * 2.0**-30),
            st.integers(1, 4096),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_no_digit_is_lost(parts: list[tuple[float, int]]) -> None:
    """The mean is that of plain numbers of examples, bit for bit."""
    total, number = np.float32(0), np.float32(0)
    for value, size in parts:
        total += np.float32(value) * np.float32(size)
        number += np.float32(size)
    values, sizes = (list(each) for each in zip(*parts, strict=True))
    assert _mean(values, sizes) == total / number


@pytest.mark.parametrize("sizes", [[1, 1], [512, 3], [60_000, 4_000_000]])
def test_the_mean_of_values_at_the_end_of_the_range_is_finite(
    sizes: list[int],
) -> None:
    largest = float(np.finfo(np.float32).max)
    np.testing.assert_allclose(
        _mean([largest, largest], sizes), largest, rtol=1e-6
    )
    assert _mean([largest, -largest], [7, 7]) == 0


def test_no_example_has_no_weight() -> None:
    assert float(example_weights.of(0, tf.float64)) == 0.0
