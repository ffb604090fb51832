from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.training.optimizers import gradient_clipping
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows

_ROWS = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
_DENSE = np.random.default_rng(1).normal(size=(5,)).astype("float32")
_IDS = np.array([6, 0, 3])


def _gradients() -> list[Any]:
    return [
        DistinctRows(tf.constant(_ROWS), tf.constant(_IDS), [8, 4]),
        tf.constant(_DENSE),
    ]


def _whole() -> list[Any]:
    table = np.zeros((8, 4), "float32")
    table[_IDS] = _ROWS
    return [tf.constant(table), tf.constant(_DENSE)]


@pytest.mark.parametrize(
    "options",
    [
        {"clipnorm": 0.5},
        {"clipnorm": 1e3},
        {"global_clipnorm": 0.5},
        {"global_clipnorm": 1e3},
        {"clipvalue": 0.1},
        {},
    ],
    ids=str,
)
def test_rows_are_clipped_as_the_whole_table_is(options: Any) -> None:
    optimizer = keras.optimizers.SGD(0.1, **options)
    expected = optimizer._clip_gradients(_whole())
    rows, dense = gradient_clipping.clip(optimizer, _gradients())
    assert isinstance(rows, DistinctRows), "an id still occurs once"
    np.testing.assert_allclose(
        tf.convert_to_tensor(rows), expected[0], rtol=1e-6
    )
    np.testing.assert_allclose(dense, expected[1], rtol=1e-6)


def test_a_norm_that_is_not_finite_spoils_everything_as_in_keras() -> None:
    optimizer = keras.optimizers.SGD(0.1, global_clipnorm=1.0)
    rows, dense = gradient_clipping.clip(
        optimizer, [_gradients()[0], tf.constant([1.0, np.inf])]
    )
    assert np.isnan(rows.values.numpy()).all()
    assert np.isnan(dense.numpy()).all()


def test_values_of_a_gradient() -> None:
    rows, dense = _gradients()
    np.testing.assert_array_equal(gradient_clipping.values_of(rows), _ROWS)
    np.testing.assert_array_equal(gradient_clipping.values_of(dense), _DENSE)
