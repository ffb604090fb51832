"""Tests of sums, means and extremes, against NumPy on all numbers at once."""

import math
from typing import Any

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tfps_plugin.coordinator.mapping.reductions import Reduction

_SLICES = st.lists(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 6), st.just(2)),
        elements=st.floats(-1e6, 1e6, width=32),
    ),
    min_size=1,
    max_size=6,
)


def _reduced(op: Any, results: list[Any], weights: Any = None) -> Any:
    reduction = Reduction(op)
    for place, result in enumerate(results):
        reduction.add(result, weights[place] if weights else 1.0)
    return reduction.result()


@hypothesis.given(_SLICES)
def test_slices_of_different_sizes_have_the_numbers_of_the_whole(
    slices: list[np.ndarray],
) -> None:
    whole = np.concatenate(slices).astype(np.float64)
    found = {
        op: _reduced(op, [getattr(each, op)(0) for each in slices])
        for op in ("sum", "max", "min")
    }
    np.testing.assert_array_equal(found["max"], whole.max(0))
    np.testing.assert_array_equal(found["min"], whole.min(0))
    scale = np.abs(whole).sum(0).max()
    np.testing.assert_allclose(
        found["sum"], whole.sum(0), rtol=0, atol=1e-5 * scale
    )
    means = [each.astype(np.float64).mean(0) for each in slices]
    mean = _reduced("mean", means, [len(each) for each in slices])
    np.testing.assert_allclose(mean, whole.mean(0), rtol=0, atol=1e-9 * scale)


@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [
        ("sum", np.float16, np.float16),
        ("sum", np.float32, np.float32),
        ("sum", np.float64, np.float64),
        ("sum", np.int8, np.int64),
        ("sum", np.uint8, np.uint64),
        ("sum", np.bool_, np.int64),
        ("max", np.int8, np.int8),
        ("min", np.bool_, np.bool_),
        ("mean", np.float32, np.float32),
        ("mean", np.int32, np.float64),
        ("sum", ml_dtypes.bfloat16, ml_dtypes.bfloat16),
    ],
)
def test_dtypes(op: str, dtype: Any, expected: Any) -> None:
    ones = np.ones([3], dtype)
    found = _reduced(op, [ones, ones])
    assert found.dtype == expected
    np.testing.assert_array_equal(
        found.astype(np.float64), [2.0 if op == "sum" else 1.0] * 3
    )


def test_sums_are_rounded_once() -> None:
    numbers = [np.float32(2**24)] + [np.float32(1)] * 1000
    assert _reduced("sum", numbers) == np.float32(2**24 + 1000)


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        (np.int64, [2**62, 2**62]),
        (np.int64, [-(2**63), -1]),
        (np.uint64, [2**64 - 1, 1]),
    ],
)
def test_integers_that_do_not_fit_are_refused(
    dtype: Any, numbers: list[int]
) -> None:
    with pytest.raises(OverflowError, match="64 bits"):
        _reduced("sum", [np.array([0, n], dtype) for n in numbers])
    # Each of them fits.
    _reduced("sum", [np.array([n], dtype) for n in (numbers[0], 0)])


def test_structures_and_functions_of_two_results() -> None:
    results = [{"a": np.ones(2), "b": (np.int32(n), [])} for n in range(4)]
    found = _reduced("sum", results)
    np.testing.assert_array_equal(found["a"], [4.0, 4.0])
    assert found["b"] == (6, [])
    texts = _reduced(lambda a, b: a + b, [b"x", b"y", b"z"])
    assert texts == b"xyz"


def test_a_result_without_examples_counts_nothing() -> None:
    results = [np.float32(3.0), np.float32(math.nan), np.float32(6.0)]
    assert _reduced("mean", results, [1, 0, 2]) == 5.0
    with pytest.raises(ValueError, match="sum of weights=0"):
        _reduced("mean", results[1:2], [0])


@pytest.mark.parametrize(
    ("results", "message"),
    [
        (
            [np.zeros(2), np.zeros(3)],
            r"shape \(2,\).*shape=\(3,\).*Let the function reduce",
        ),
        ([np.zeros(2), np.zeros([1, 2])], "same shapes"),
        (
            [np.zeros(2), {"a": np.zeros(2)}],
            r"of the first, \(2,\).*structure={'a': \(2,\)}.*the same keys",
        ),
        ([[np.zeros(2)], [np.zeros(2), 3]], r"\[\(2,\)\].*\[\(2,\), \(\)\]"),
        ([np.zeros(2), np.zeros(2, int)], "float64.*dtype=int64"),
        ([], "at least one item.*number of items=0.*iterator"),
    ],
)
@pytest.mark.parametrize("op", ["sum", "max"])
def test_results_that_differ_are_refused(
    op: str, results: list[Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        _reduced(op, results)
    assert "coordinator.reduce()" in str(raised.value)


@pytest.mark.parametrize("result", [b"text", np.array(["a"]), 1j, None])
def test_what_is_no_number_is_refused(result: Any) -> None:
    with pytest.raises(TypeError, match="real numbers"):
        _reduced("sum", [result])


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_weights_that_are_none_are_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight="):
        _reduced("mean", [np.ones(1)], [weight])


@pytest.mark.parametrize("op", ["median", "", None, 3])
def test_other_names_are_refused(op: Any) -> None:
    with pytest.raises(
        ValueError, match=r"'sum', 'mean'.*op=.*pass a function"
    ):
        Reduction(op)
