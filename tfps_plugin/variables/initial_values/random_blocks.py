"""Any block of rows of what a random initializer would make in one piece.

TensorFlow's stateless random operations draw from Philox, a counter-based
generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
2011): the value at a position depends only on the key and on the position. So
the rows of one block can be drawn by themselves, by starting the counter where
they begin, and they are exactly those of the whole table. How a table is cut
then has no influence on its values.
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
# Truncation draws again what falls outside, so each output of a group reserves
# this many counts.
_TRUNCATED_COUNTS_PER_OUTPUT = 64


@dataclasses.dataclass(frozen=True)
class RandomDraw:
    """What a random initializer draws for a whole variable.

    Attributes:
        distribution: Name of the distribution.
        parameters: Mean and standard deviation, or lower and upper end of a
            uniform distribution.
        seed: The two numbers that TensorFlow's stateless operations take.
    """

    distribution: Literal["normal", "truncated_normal", "uniform"]
    parameters: tuple[float, float]
    seed: tuple[int, int]


def outputs_per_count(dtype: tf.DType) -> int:
    """How many neighbouring outputs share one value of the counter."""
    return _OUTPUTS_PER_COUNT_64 if dtype.size == 8 else _OUTPUTS_PER_COUNT_32


def advance(counter: tuple[int, int], counts: int) -> tuple[int, int]:
    """Moves a Philox counter on.

    Args:
        counter: Low and high 64 bits.
        counts: How far.

    Returns:
        The new low and high 64 bits.
    """
    value = (counter[0] + (counter[1] << 64) + counts) % (1 << 128)
    return value % (1 << 64), value >> 64


class RandomBlocks:
    """Draws blocks of rows on the device that is current when asked."""

    def __init__(
        self, draw: RandomDraw, row_shape: tuple[int, ...], dtype: tf.DType
    ) -> None:
        """Prepares the counter; draws nothing.

        Args:
            draw: What the initializer draws.
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
        """The rows `start <= row < stop` of the whole variable."""
        group = outputs_per_count(self._dtype)
        first = start * self._row_size
        # Counters start at whole groups: draw from there, drop the rest.
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
            # Philox: what "auto_select" chooses on a CPU.
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
            # Keras casts the ends, by way of float32; TensorFlow converts.
            low, high = (tf.cast(p, self._dtype) for p in draw.parameters)
            return tf.add(drawn * (high - low), low)
        mean, stddev = (
            tf.convert_to_tensor(p, self._dtype) for p in draw.parameters
        )
        return tf.add(drawn * stddev, mean)
