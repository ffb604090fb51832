"""Any block of rows of a random initializer's full value.

TensorFlow's stateless random operations draw from Philox, a counter-based
generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
2011): the value at a position depends only on the key and on the position. So
the rows of one block can be drawn by themselves, by starting the counter where
they begin, and they are exactly those of the whole table. The sharding of a
table then has no influence on its values.
"""

import dataclasses
import math
from typing import Literal

import numpy as np
import tensorflow as tf

# Outputs drawn from one value of the counter, on CPU: Philox gives four 32-bit
# numbers; one 64-bit output takes two of them.
_OUTPUTS_PER_COUNT_32 = 4
_OUTPUTS_PER_COUNT_64 = 2
# Truncation draws values outside of its bounds again, so each output of a group
# reserves this many counts.
_TRUNCATED_COUNTS_PER_OUTPUT = 64


@dataclasses.dataclass(frozen=True)
class RandomDraw:
    """Distribution and seed of a whole variable's random initial value.

    Attributes:
        distribution: Name of the distribution.
        parameters: Mean and standard deviation, or lower and upper bound of a
            uniform distribution.
        seed: The two numbers that TensorFlow's stateless operations take.
    """

    distribution: Literal["normal", "truncated_normal", "uniform"]
    parameters: tuple[float, float]
    seed: tuple[int, int]


def outputs_per_count(dtype: tf.DType) -> int:
    """Returns the number of adjacent outputs that share one counter value."""
    return _OUTPUTS_PER_COUNT_64 if dtype.size == 8 else _OUTPUTS_PER_COUNT_32


def advance(counter: tuple[int, int], counts: int) -> tuple[int, int]:
    """Advances a Philox counter.

    Args:
        counter: Low and high 64 bits.
        counts: Number to add.

    Returns:
        The new low and high 64 bits.
    """
    value = (counter[0] + (counter[1] << 64) + counts) % (1 << 128)
    return value % (1 << 64), value >> 64


class RandomBlocks:
    """Draws blocks of rows on the device that is current at the call."""

    def __init__(
        self, draw: RandomDraw, row_shape: tuple[int, ...], dtype: tf.DType
    ) -> None:
        """Prepares the counter; draws nothing.

        Args:
            draw: Distribution and seed of the whole variable.
            row_shape: Shape of one row.
            dtype: Floating dtype of the variable.
        """
        self._draw = draw
        self._row_shape = row_shape
        self._row_size = math.prod(row_shape)
        self._dtype = dtype
        with tf.device("/device:CPU:0"):
            key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(
                seed=tf.constant(draw.seed, tf.int32)
            )
            self._key = key.numpy()
        low, high = (int(c) for c in counter.numpy())
        self._counter = (low, high)

    def rows(self, start: int, stop: int) -> tf.Tensor:
        """Returns the rows `start <= row < stop` of the whole variable."""
        group = outputs_per_count(self._dtype)
        first = start * self._row_size
        # Counters start at whole groups: draw from there, drop the surplus.
        skipped = first % group
        length = (stop - start) * self._row_size
        flat = self._draw_flat((first - skipped) // group, skipped + length)
        return tf.reshape(flat[skipped:], [stop - start, *self._row_shape])

    def _draw_flat(self, groups: int, length: int) -> tf.Tensor:
        draw = self._draw
        counts = groups
        if draw.distribution == "truncated_normal":
            counts *= _TRUNCATED_COUNTS_PER_OUTPUT * outputs_per_count(
                self._dtype
            )
        arguments = {
            "shape": tf.constant([length], tf.int64),
            "key": tf.constant(self._key, tf.uint64),
            "counter": tf.constant(
                np.array(advance(self._counter, counts), np.uint64)
            ),
            # Philox, which "auto_select" chooses on a CPU.
            "alg": tf.constant(1, tf.int32),
            "dtype": self._dtype,
        }
        operation = {
            "normal": tf.raw_ops.StatelessRandomNormalV2,
            "truncated_normal": tf.raw_ops.StatelessTruncatedNormalV2,
            "uniform": tf.raw_ops.StatelessRandomUniformV2,
        }[draw.distribution]
        drawn = operation(**arguments)
        if draw.distribution == "uniform":
            # Keras casts the bounds, by way of float32; TensorFlow converts.
            low, high = (tf.cast(p, self._dtype) for p in draw.parameters)
            return tf.add(drawn * (high - low), low)
        mean, stddev = (
            tf.convert_to_tensor(p, self._dtype) for p in draw.parameters
        )
        return tf.add(drawn * stddev, mean)
