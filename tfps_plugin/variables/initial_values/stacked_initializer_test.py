from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.variables import testing
from tfps_plugin.variables.initial_values import initialization
from tfps_plugin.variables.initial_values.stacked_initializer import (
    StackedInitializer,
)

_ROWS = (17, 40, 1, 9, 23)


def _initializers() -> list[Any]:
    return [
        keras.initializers.RandomUniform(seed=3),
        # Its scale depends on the number of rows.
        keras.initializers.VarianceScaling(mode="fan_out", seed=4),
        keras.initializers.Constant(0.4),
        # It can only be made in one piece.
        keras.initializers.Orthogonal(seed=5),
        keras.initializers.RandomNormal(seed=3),
    ]


def _expected(width: int) -> np.ndarray:
    return np.concatenate(
        [
            keras.ops.convert_to_numpy(initializer((rows, width)))
            for initializer, rows in zip(_initializers(), _ROWS, strict=True)
        ]
    )


@pytest.mark.compat
@pytest.mark.parametrize("num_shards", [1, 2, 3, 7])
@pytest.mark.parametrize("block_bytes", [37 * 4, 1 << 20])
def test_each_table_starts_as_it_would_alone(
    num_shards: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initialization, "_BLOCK_BYTES", block_bytes)
    stacked = StackedInitializer(_initializers(), _ROWS)
    shape = (sum(_ROWS), 5)
    np.testing.assert_array_equal(stacked(shape, "float32"), _expected(5))
    table = testing.initialized_table(stacked, shape, num_shards)
    np.testing.assert_array_equal(table.numpy(), _expected(5))


def test_what_is_made_in_one_piece_is_made_once() -> None:
    made = []

    def draw(shape: Any, dtype: Any = None) -> tf.Tensor:
        made.append(shape)
        return tf.random.uniform(shape, dtype=dtype)

    stacked = StackedInitializer([draw, "zeros"], [20, 4])
    table = testing.initialized_table(stacked, (24, 3), 4)
    assert made == [(20, 3)]
    assert np.all(table.numpy()[:20] != 0)
    assert np.all(table.numpy()[20:] == 0)


def test_a_seed_that_moves_on_is_drawn_once_for_each_table() -> None:
    def stacked() -> StackedInitializer:
        seed = keras.random.SeedGenerator(7)
        return StackedInitializer(
            [keras.initializers.RandomUniform(seed=seed) for _ in range(2)],
            [20, 20],
        )

    table = testing.initialized_table(stacked(), (40, 3), 3)
    np.testing.assert_array_equal(table.numpy(), stacked()((40, 3), "float32"))


def test_another_number_of_rows_is_refused() -> None:
    stacked = StackedInitializer(["zeros", "ones"], [2, 3])
    with pytest.raises(ValueError, match="the 5 of its tables"):
        stacked((6, 4))
    with pytest.raises(ValueError, match="one initializer for each"):
        StackedInitializer(["zeros"], [2, 3])


def test_it_is_described_and_made_again() -> None:
    stacked = StackedInitializer(
        [keras.initializers.RandomNormal(seed=1), "ones"], [2, 3]
    )
    again = keras.initializers.deserialize(
        keras.initializers.serialize(stacked)
    )
    assert isinstance(again, StackedInitializer)
    np.testing.assert_array_equal(again((5, 4)), stacked((5, 4)))
