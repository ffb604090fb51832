"""First rows of ids: they depend on the id and a seed, and on nothing else.

Shape legend: N ids or keys, D numbers in a row, T tables.
"""

import dataclasses
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.exports import first_rows
from tfps_plugin.exports.first_rows import FirstRows
from tfps_plugin.exports.first_rows import start_of
from tfps_plugin.variables.dynamic.ids import id_hashing
from tfps_plugin.variables.dynamic.ids import keys


@dataclasses.dataclass(frozen=True)
class InitialRows:
    """First rows of ids of a table, whoever asks for them, in any order.

    Attributes:
        distribution: One of `first_rows.DISTRIBUTIONS`.
        parameters: The constant, twice; lower and upper end; or mean and
            standard deviation.
        seed: Seed of a random distribution.
        width: Number of columns.
        dtype: Floating dtype of the rows.
    """

    distribution: str
    parameters: tuple[float, float]
    seed: int
    width: int
    dtype: tf.DType

    def described(self) -> FirstRows:
        """Returns the same for a process that has NumPy only."""
        return FirstRows(
            self.distribution, self.parameters, self.seed, self.dtype.name
        )

    def of(
        self, ids_N: tf.Tensor, starts_N: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns the first row of each id, shape `(N, D)`.

        Args:
            ids_N: Any int64.
            starts_N: What hashes begin with, see `id_hashing.uniform`; None:
                that of the seed.
        """
        first, second = self.parameters
        if self.distribution == first_rows.CONSTANT:
            shape = tf.stack([tf.size(ids_N), self.width])
            return tf.fill(shape, tf.constant(first, self.dtype))
        if starts_N is None:
            starts_N = tf.constant(start_of(self.seed))
        drawn_ND = id_hashing.uniform(ids_N, self.width, starts_N)
        if self.distribution == first_rows.UNIFORM:
            rows_ND = first + (second - first) * drawn_ND
        else:
            quantiles = first_rows.quantiles(self.distribution)
            rows_ND = first + second * _interpolated(quantiles, drawn_ND)
        return tf.cast(rows_ND, self.dtype)


@dataclasses.dataclass(frozen=True)
class StackedInitialRows:
    """First rows of keys of tables that are stacked: as if each were alone.

    Attributes:
        tables: Those of each table, of one width and dtype.
    """

    tables: tuple[InitialRows, ...]

    def of(self, keys_N: tf.Tensor) -> tf.Tensor:
        """Returns the first row of each key, shape `(N, D)`."""
        tables_N = keys.tables_of(keys_N)
        starts_T = np.array([start_of(each.seed) for each in self.tables])
        # Often all are of one kind but for their seeds.
        kinds = [dataclasses.replace(each, seed=0) for each in self.tables]
        distinct = list(dict.fromkeys(kinds))
        kinds_N = tf.gather([distinct.index(each) for each in kinds], tables_N)
        given = (
            keys.ids_of(keys_N),
            tf.gather(starts_T, tables_N),
            tf.range(keys.num_of(keys_N)),
        )
        ids, starts, places = (
            tf.dynamic_partition(each, kinds_N, len(distinct)) for each in given
        )
        rows = [
            kind.of(*of_kind)
            for kind, *of_kind in zip(distinct, ids, starts, strict=True)
        ]
        return tf.dynamic_stitch(places, rows)


def described_by(
    initializer: Any, width: int, dtype: tf.DType, name: str
) -> InitialRows:
    """Returns the first rows that a Keras initializer describes.

    An initializer without a seed takes one from the name, so that a program
    that is started again makes the same rows.

    Args:
        initializer: A constant or random Keras initializer.
        width: Number of columns.
        dtype: Dtype of the rows.
        name: Name of the table.

    Raises:
        UnsupportedError: For an initializer whose values need the number of
            rows, or that is not known.
    """
    if keras_compat.is_elementwise_constant(initializer):
        value = float(initializer((1,), dtype="float32")[0])
        return InitialRows(first_rows.CONSTANT, (value, value), 0, width, dtype)
    mode = getattr(initializer, "mode", "fan_out")
    drawn = keras_compat.random_draw(initializer, (1, width))
    if drawn is None or mode != "fan_out":
        raise errors.UnsupportedError(
            f"The table {name!r} has no fixed number of rows, so each first "
            "row is made from its id. Expected a constant initializer, or one "
            "of keras.initializers that draws numbers without regard to the "
            "number of rows: RandomUniform, RandomNormal, TruncatedNormal, or "
            "VarianceScaling with mode='fan_out'. Received: "
            f"embeddings_initializer={initializer!r}"
        )
    distribution, (first, second), numbers = drawn
    if _has_seed(initializer):
        seed = (numbers[0] << 32) ^ numbers[1]
    else:
        seed = zlib.crc32(name.encode())
    # As numbers of Python, which JSON takes, too.
    parameters = float(first), float(second)
    return InitialRows(distribution, parameters, seed, width, dtype)


def _interpolated(quantiles: np.ndarray, shares: tf.Tensor) -> tf.Tensor:
    """Returns the values at some shares of the distribution, from 0 to 1."""
    places = shares * float(len(quantiles) - 1)
    below = tf.floor(places)
    numbers = tf.cast(below, tf.int32)
    values = tf.gather(quantiles, numbers)
    steps = tf.gather(np.diff(quantiles), numbers)
    return values + (places - below) * steps


def _has_seed(initializer: keras.initializers.Initializer) -> bool:
    return initializer.get_config().get("seed") is not None
