"""Numbers as words of 4 bytes, laid end to end and cut again."""

from collections.abc import Sequence

import tensorflow as tf

WORD_BYTES = 4


def flat(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor as a vector."""
    return tensor if tensor.shape.rank == 1 else tf.reshape(tensor, [-1])


def joined(pieces: Sequence[tf.Tensor]) -> tf.Tensor:
    """Vectors end to end."""
    return pieces[0] if len(pieces) == 1 else tf.concat(pieces, 0)


def of_dtype(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The same bits, of another dtype of as many."""
    return words if words.dtype == dtype else tf.bitcast(words, dtype)


def as_words(tensors: Sequence[tf.Tensor], carrier: tf.DType) -> tf.Tensor:
    """Numbers of one dtype, of another size than words, as words."""
    dtype = tensors[0].dtype
    if dtype.size > WORD_BYTES:
        return flat(tf.bitcast(joined(tensors), carrier))
    each = WORD_BYTES // dtype.size
    missing = -tf.add_n([tf.size(tensor) for tensor in tensors]) % each
    filled = tf.concat([*tensors, tf.zeros([missing], dtype)], 0)
    return tf.bitcast(tf.reshape(filled, [-1, each]), carrier)


def num_words(count: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """How many words so many numbers are."""
    if dtype.size > WORD_BYTES:
        return count * (dtype.size // WORD_BYTES)
    each = WORD_BYTES // dtype.size
    return (count + each - 1) // each


def from_words(
    words: tf.Tensor, dtype: tf.DType, count: tf.Tensor
) -> tf.Tensor:
    """What `as_words` was given, `count` numbers, one behind the other."""
    if dtype.size > WORD_BYTES:
        each = dtype.size // WORD_BYTES
        return tf.bitcast(tf.reshape(words, [-1, each]), dtype)
    return flat(tf.bitcast(words, dtype))[:count]


def split(
    together: tf.Tensor, lengths: Sequence[tf.Tensor], num: int
) -> list[tf.Tensor]:
    """Cuts along the first axis.

    Args:
        together: What is cut.
        lengths: Vectors of lengths; -1, once: what is left.
        num: How many pieces there are.
    """
    if num == 1:
        return [together]
    pieces: list[tf.Tensor] = tf.split(together, joined(lengths), num=num)
    return pieces
