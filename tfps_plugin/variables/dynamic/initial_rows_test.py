"""Tests of the first rows of ids, against the distributions of Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.exports import first_rows
from tfps_plugin.variables.dynamic import initial_rows

_IDS = tf.range(20_000, dtype=tf.int64)
# One of each kind that a table without a vocabulary takes.
_INITIALIZERS = {
    "zeros": keras.initializers.Zeros(),
    "ones": keras.initializers.Ones(),
    "constant": keras.initializers.Constant(-1.7),
    "wide": keras.initializers.RandomNormal(0.0, 1e5, seed=5),
    "nan": keras.initializers.Constant(float("nan")),
    "uniform": keras.initializers.RandomUniform(),
    "from_numpy": keras.initializers.RandomUniform(
        np.float32(-0.1), np.float32(0.3), seed=1
    ),
    "normal": keras.initializers.RandomNormal(0.1, 0.3, seed=2),
    "truncated": keras.initializers.TruncatedNormal(-0.1, 0.3, seed=3),
    **{
        f"scaled_{each}": keras.initializers.VarianceScaling(
            2.0, "fan_out", each, seed=4
        )
        for each in ("uniform", "truncated_normal", "untruncated_normal")
    },
}


@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.RandomUniform(-0.2, 0.4, seed=1),
        keras.initializers.RandomNormal(0.1, 0.3, seed=1),
        keras.initializers.TruncatedNormal(0.1, 0.3, seed=1),
        keras.initializers.VarianceScaling(2.0, "fan_out", seed=1),
    ],
    ids=lambda each: type(each).__name__,
)
def test_rows_have_the_distribution_of_the_initializer(
    initializer: keras.initializers.Initializer,
) -> None:
    rows = initial_rows.described_by(initializer, 8, tf.float32, "t").of(_IDS)
    other = type(initializer)(**{**initializer.get_config(), "seed": 2})
    drawn = other((20_000, 8))
    quantiles = np.linspace(0.01, 0.99, 25)
    np.testing.assert_allclose(
        np.quantile(rows, quantiles),
        np.quantile(drawn, quantiles),
        atol=0.03,
    )


def test_a_row_is_the_same_to_the_last_bit_wherever_it_is_made() -> None:
    initializer = keras.initializers.RandomNormal(seed=1)
    described = initial_rows.described_by(initializer, 5, tf.float32, "t")
    together = described.of(_IDS[:50])
    for number in range(50):
        alone = described.of(_IDS[number : number + 1])
        np.testing.assert_array_equal(alone[0], together[number])


@pytest.mark.parametrize("dtype", first_rows.DTYPES)
@pytest.mark.parametrize("name", _INITIALIZERS)
def test_numpy_makes_the_same_rows_to_the_last_bit(
    name: str, dtype: str
) -> None:
    described = initial_rows.described_by(
        _INITIALIZERS[name], 7, tf.as_dtype(dtype), "items"
    )
    ids = np.random.default_rng(5).integers(-(2**63), 2**63 - 1, 20_000)
    ids[:4] = -1, 0, 2**63 - 1, -(2**63)
    of_ids = tf.function(described.of, autograph=False)
    rows = tf.cast(of_ids(ids), "float32" if dtype == "bfloat16" else dtype)
    found = described.described().of(ids, 7)
    assert found.dtype == rows.numpy().dtype
    # As bytes: it is the bits that must not differ.
    assert found.tobytes() == rows.numpy().tobytes()


def test_a_constant_is_that_constant() -> None:
    rows = initial_rows.described_by(
        keras.initializers.Constant(0.25), 3, tf.float16, "t"
    ).of(_IDS[:2])
    assert rows.dtype == tf.float16
    np.testing.assert_array_equal(rows, np.full((2, 3), 0.25))


def test_without_a_seed_rows_depend_on_the_name() -> None:
    def rows(name: str) -> np.ndarray:
        initializer = keras.initializers.RandomNormal()
        described = initial_rows.described_by(initializer, 4, tf.float32, name)
        return described.of(_IDS[:5]).numpy()

    np.testing.assert_array_equal(rows("items"), rows("items"))
    assert np.abs(rows("items") - rows("users")).min() > 0


@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.GlorotUniform(),
        keras.initializers.Orthogonal(),
        keras.initializers.Constant(np.zeros((2, 2))),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_initializer_that_needs_the_number_of_rows_is_refused(
    initializer: keras.initializers.Initializer,
) -> None:
    with pytest.raises(
        errors.UnsupportedError, match="embeddings_initializer="
    ):
        initial_rows.described_by(initializer, 2, tf.float32, "items")
