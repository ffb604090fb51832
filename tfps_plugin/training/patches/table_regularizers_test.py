from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.training.patches import table_regularizers


class _OfColumns(keras.regularizers.Regularizer):
    def __call__(self, x: Any) -> Any:
        return tf.reduce_sum(tf.square(tf.reduce_sum(x, 0)))


class _OfElements(keras.regularizers.Regularizer):
    row_wise = True

    def __call__(self, x: Any) -> Any:
        return tf.reduce_sum(tf.abs(x) ** 3)


@pytest.mark.parametrize(
    ("regularizer", "expected"),
    [
        (keras.regularizers.L1(0.1), True),
        (keras.regularizers.L2(0.1), True),
        (keras.regularizers.L1L2(0.1, 0.2), True),
        (_OfElements(), True),
        (keras.regularizers.OrthogonalRegularizer(0.1), False),
        (_OfColumns(), False),
    ],
)
def test_which_penalties_are_sums_over_rows(
    regularizer: Any, expected: bool
) -> None:
    assert table_regularizers.sums_over_rows(regularizer) is expected
    if expected:
        value = np.random.default_rng(0).normal(size=(6, 2)).astype("f4")
        parts = sum(float(regularizer(row[None])) for row in value)
        np.testing.assert_allclose(float(regularizer(value)), parts, rtol=1e-5)


def test_layers_without_tables_of_ours_are_as_before() -> None:
    layer = keras.layers.Dense(3, kernel_regularizer="l2")
    layer(tf.ones((2, 4)))
    get = table_regularizers.penalties(keras.Layer._get_regularization_losses)
    np.testing.assert_allclose(
        get(layer)[0], 0.01 * np.sum(layer.kernel.numpy() ** 2), rtol=1e-5
    )
