import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.variables import testing
from tfps_plugin.variables.initial_values import initialization

_INITIALIZERS = [
    keras.initializers.GlorotUniform(seed=3),
    keras.initializers.GlorotNormal(seed=3),
    keras.initializers.HeNormal(seed=4),
    keras.initializers.HeUniform(seed=4),
    keras.initializers.LecunNormal(seed=5),
    keras.initializers.RandomUniform(-0.1, 0.3, seed=2),
    keras.initializers.RandomNormal(0.5, 2.0, seed=9),
    keras.initializers.TruncatedNormal(seed=1),
    keras.initializers.VarianceScaling(
        2.0, "fan_avg", "untruncated_normal", seed=8
    ),
    keras.initializers.Zeros(),
    keras.initializers.Ones(),
    keras.initializers.Constant(0.4),
    # Made in one piece and cut:
    keras.initializers.Orthogonal(seed=3),
    keras.initializers.Identity(),
]


@pytest.mark.compat
@pytest.mark.parametrize("num_shards", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "initializer", _INITIALIZERS, ids=lambda i: type(i).__name__
)
def test_shards_hold_what_keras_makes_in_one_piece(
    initializer: keras.initializers.Initializer,
    num_shards: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Several blocks per shard, none of them a whole number of counters.
    monkeypatch.setattr(initialization, "_BLOCK_BYTES", 37 * 4)
    table = testing.initialized_table(initializer, (101, 5), num_shards)
    whole = keras.ops.convert_to_numpy(initializer((101, 5)))
    np.testing.assert_array_equal(table.numpy(), whole)


def test_a_subclass_of_an_initializer_is_not_second_guessed() -> None:
    class Doubled(keras.initializers.RandomNormal):
        def __call__(self, shape: object, dtype: object = None) -> tf.Tensor:
            return 2 * super().__call__(shape, dtype)

    table = testing.initialized_table(Doubled(seed=1), (10, 3), 2)
    np.testing.assert_array_equal(
        table.numpy(), Doubled(seed=1)((10, 3)).numpy()
    )


def test_describing_runs_nothing() -> None:
    ran = []

    def make() -> tf.Tensor:
        tf.py_function(lambda: ran.append(1), [], [])
        return tf.ones([4, 2], tf.float64)

    described = initialization.describe(make, None, None)
    assert described.shape == (4, 2)
    assert described.dtype == tf.float64
    assert described.num_bytes == 64
    assert not ran


def test_arrays_and_tensors_are_described_too() -> None:
    described = initialization.describe(np.zeros((3, 2)), tf.float32, None)
    assert (described.shape, described.dtype) == ((3, 2), tf.float32)


def test_a_shape_known_only_at_run_time_is_found_out() -> None:
    described = initialization.describe(
        lambda: tf.where([True, False, True]), None, None
    )
    assert described.shape == (2, 1)
