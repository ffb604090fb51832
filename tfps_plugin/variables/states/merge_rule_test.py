"""Tests that neutral elements change nothing they are combined with."""

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.variables.states.merge_rule import MergeRule

_REDUCING = [rule for rule in MergeRule if rule.reduces]
_DTYPES = [
    *("bool", "int8", "uint8", "int32", "int64"),
    *("float16", "float32", "float64"),
]


@pytest.mark.parametrize("rule", _REDUCING)
@pytest.mark.parametrize("dtype", _DTYPES)
def test_a_neutral_element_changes_nothing(rule: MergeRule, dtype: str) -> None:
    values = np.asarray([0, 1, 100]).astype(dtype)
    neutral = rule.neutral(values.dtype)
    assert neutral.dtype == values.dtype
    assert neutral.shape == ()
    combined = rule.combine(np.full_like(values, neutral), values)
    np.testing.assert_array_equal(combined, values)
    assert combined.dtype == values.dtype


@pytest.mark.parametrize("rule", _REDUCING)
def test_dtypes_that_numpy_does_not_know(rule: MergeRule) -> None:
    dtype = np.dtype(tf.bfloat16.as_numpy_dtype)
    values = np.asarray([-3.0, 0.5], dtype)
    neutral = rule.neutral(dtype)
    assert neutral.dtype == dtype
    np.testing.assert_array_equal(
        rule.combine(np.full_like(values, neutral), values), values
    )


def test_values_are_combined_by_element() -> None:
    first, second = np.array([1.0, 5.0]), np.array([2.0, -1.0])
    expected = {
        MergeRule.SUM: [3.0, 4.0],
        MergeRule.MAX: [2.0, 5.0],
        MergeRule.MIN: [1.0, -1.0],
    }
    assert set(expected) == set(_REDUCING)
    for rule, values in expected.items():
        assert rule.combine(first, second).tolist() == values
