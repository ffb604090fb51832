"""Quantization of rows to int8, with a scale for each row.

The scale of a row is its largest magnitude divided by 127. Each number becomes
the nearest multiple of the scale. With stochastic rounding it becomes one of
the two multiples beside it, at random, so that its expected value is exact:
gradients without error feedback need this. One int32 tensor holds it all: the
bits of the scale, then four numbers in each word. A row with a number that is
not finite arrives as NaN.

Shape legend: R rows, W numbers in a row, C words of its code.
"""

import tensorflow as tf

_BYTES_A_WORD = 4
_MOST = 127.0


def num_words(width: int) -> int:
    """Returns the number of int32 words of a quantized row."""
    return 1 + -(-width // _BYTES_A_WORD)


def quantize(rows_RW: tf.Tensor, *, stochastic: bool = False) -> tf.Tensor:
    """Quantizes rows.

    Args:
        rows_RW: Floats, shape `(R, W)`; `W` is known.
        stochastic: Whether to round up or down at random, with probabilities
            that keep the expected value.

    Returns:
        Their code, int32, shape `(R, C)`.
    """
    rows_RW = tf.cast(rows_RW, tf.float32)
    width = rows_RW.shape[1]
    scale_R1 = tf.reduce_max(tf.abs(rows_RW), 1, keepdims=True) / _MOST
    # The maximum ignores NaN.
    scale_R1 += tf.reduce_sum(rows_RW * 0.0, 1, keepdims=True)
    multiples_RW = tf.math.divide_no_nan(rows_RW, scale_R1)
    if stochastic:
        chance_RW = tf.random.uniform(tf.shape(multiples_RW))
        multiples_RW = tf.floor(multiples_RW + chance_RW)
    else:
        multiples_RW = tf.round(multiples_RW)
    # Quotients may be slightly too large.
    multiples_RW = tf.clip_by_value(multiples_RW, -_MOST, _MOST)
    num_bytes = (num_words(width) - 1) * _BYTES_A_WORD
    bytes_RW = tf.pad(
        tf.cast(multiples_RW, tf.int8), [[0, 0], [0, num_bytes - width]]
    )
    words_RC = tf.bitcast(
        tf.reshape(bytes_RW, [-1, num_words(width) - 1, _BYTES_A_WORD]),
        tf.int32,
    )
    return tf.concat([tf.bitcast(scale_R1, tf.int32), words_RC], 1)


def dequantize(code_RC: tf.Tensor, width: int) -> tf.Tensor:
    """Restores rows from their code.

    Args:
        code_RC: Result of `quantize`, shape `(R, C)`.
        width: Numbers in a row.

    Returns:
        The rows, float32, shape `(R, W)`.
    """
    num_bytes = (num_words(width) - 1) * _BYTES_A_WORD
    bytes_RW = tf.reshape(tf.bitcast(code_RC[:, 1:], tf.int8), [-1, num_bytes])[
        :, :width
    ]
    scale_R1 = tf.bitcast(code_RC[:, :1], tf.float32)
    return tf.cast(bytes_RW, tf.float32) * scale_R1
