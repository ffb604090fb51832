"""Conversion of numbers to 4-byte words, which are concatenated and split."""

from collections.abc import Sequence

import tensorflow as tf

WORD_BYTES = 4


def flat(tensor: tf.Tensor) -> tf.Tensor:
    """Flattens a tensor."""
    return tensor if tensor.shape.rank == 1 else tf.reshape(tensor, [-1])


def joined(pieces: Sequence[tf.Tensor]) -> tf.Tensor:
    """Concatenates vectors."""
    return pieces[0] if len(pieces) == 1 else tf.concat(pieces, 0)


def of_dtype(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the same bits as another dtype of the same size."""
    return words if words.dtype == dtype else _bitcast(words, dtype)


def _bitcast(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype == tf.float32:
        # When TensorFlow folds constants, it flushes small integers, as floats,
        # to zero. It does not fold this operation.
        words = tf.raw_ops.PlaceholderWithDefault(
            input=words, shape=words.shape
        )
    return tf.bitcast(words, dtype)


def as_words(tensors: Sequence[tf.Tensor], carrier: tf.DType) -> tf.Tensor:
    """Converts numbers of one dtype, of 2 or 8 bytes, to words."""
    dtype = tensors[0].dtype
    if dtype.size > WORD_BYTES:
        return flat(_bitcast(joined(tensors), carrier))
    each = WORD_BYTES // dtype.size
    missing = -tf.add_n([tf.size(tensor) for tensor in tensors]) % each
    filled = tf.concat([*tensors, tf.zeros([missing], dtype)], 0)
    return _bitcast(tf.reshape(filled, [-1, each]), carrier)


def num_words(count: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the number of words that some numbers take."""
    if dtype.size > WORD_BYTES:
        return count * (dtype.size // WORD_BYTES)
    each = WORD_BYTES // dtype.size
    return (count + each - 1) // each


def from_words(
    words: tf.Tensor, dtype: tf.DType, count: tf.Tensor
) -> tf.Tensor:
    """Restores `count` numbers from `as_words`, as a vector."""
    if dtype.size > WORD_BYTES:
        each = dtype.size // WORD_BYTES
        return tf.bitcast(tf.reshape(words, [-1, each]), dtype)
    return flat(tf.bitcast(words, dtype))[:count]


def split(
    together: tf.Tensor, lengths: Sequence[tf.Tensor], num: int
) -> list[tf.Tensor]:
    """Splits along the first axis.

    Args:
        together: The tensor to split.
        lengths: Vectors of lengths; one may be -1, for the rest.
        num: Number of pieces.

    Returns:
        The pieces.
    """
    if num == 1:
        return [together]
    pieces: list[tf.Tensor] = tf.split(together, joined(lengths), num=num)
    return pieces
