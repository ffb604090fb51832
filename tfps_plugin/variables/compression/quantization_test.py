"""Tests of rows with one byte for each number."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tfps_plugin.variables.compression import quantization

_ROWS = st_numpy.arrays(
    np.float32,
    st_numpy.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9),
    elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False),
)


def _there_and_back(rows: np.ndarray, **options: bool) -> np.ndarray:
    code = quantization.quantize(tf.constant(rows), **options)
    assert code.dtype == tf.int32
    assert code.shape == [len(rows), quantization.num_words(rows.shape[1])]
    back: np.ndarray = quantization.dequantize(code, rows.shape[1]).numpy()
    return back


@given(_ROWS)
def test_each_number_is_within_half_a_step_of_its_row(rows: np.ndarray) -> None:
    steps = np.abs(rows).max(1, keepdims=True) / 127
    error = np.abs(_there_and_back(rows) - rows)
    assert (error <= 0.5001 * steps + 1e-36).all()


@given(_ROWS)
def test_by_chance_it_is_within_a_step(rows: np.ndarray) -> None:
    steps = np.abs(rows).max(1, keepdims=True) / 127
    error = np.abs(_there_and_back(rows, stochastic=True) - rows)
    assert (error <= 1.0001 * steps + 1e-36).all()


def test_by_chance_it_is_right_in_the_mean() -> None:
    tf.random.set_seed(1)
    row = np.array([[127.0, 0.25, -3.75, 0.0]], np.float32)
    back = _there_and_back(np.repeat(row, 20_000, 0), stochastic=True)
    # Six standard deviations of the mean.
    np.testing.assert_allclose(back.mean(0), row[0], atol=6 * 0.5 / 141)
    assert set(back[:, 1]) == {0.0, 1.0}


def test_a_row_of_zeros_and_no_rows() -> None:
    zeros = np.zeros([2, 5], np.float32)
    np.testing.assert_array_equal(_there_and_back(zeros), zeros)
    assert _there_and_back(np.zeros([0, 5], np.float32)).shape == (0, 5)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen(wrong: float) -> None:
    rows = np.array([[1.0, wrong, 2.0], [1.0, 2.0, 3.0]], np.float32)
    back = _there_and_back(rows)
    assert not np.isfinite(back[0]).all()
    assert np.isfinite(back[1]).all()


def test_a_row_of_sixteen_takes_twenty_bytes() -> None:
    assert quantization.num_words(16) == 5
    assert quantization.num_words(17) == 6
    assert quantization.num_words(1) == 2
