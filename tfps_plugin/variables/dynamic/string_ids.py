"""Strings as ids: 63 bits of a keyed hash."""

from typing import Any

import tensorflow as tf

# Key of SipHash-2-4 (Aumasson and Bernstein, "SipHash: a fast short-input
# PRF", 2012), which TensorFlow calls its strong hash.
_KEY = (0x7466_7073, 0x6964_7321)


def as_integers(ids: Any) -> Any:
    """Returns ids as they are, or strings as integers.

    Args:
        ids: A dense, ragged or sparse tensor of integers or strings, or what
            TensorFlow converts to one.

    Returns:
        The same kind of tensor, of int64 if it had strings.
    """
    if isinstance(ids, tf.RaggedTensor):
        if ids.dtype != tf.string:
            return ids
        return tf.ragged.map_flat_values(_hashed, ids)
    if isinstance(ids, tf.SparseTensor):
        if ids.dtype != tf.string:
            return ids
        return tf.SparseTensor(
            ids.indices, _hashed(ids.values), ids.dense_shape
        )
    ids = tf.convert_to_tensor(ids)
    return _hashed(ids) if ids.dtype == tf.string else ids


def _hashed(strings: tf.Tensor) -> tf.Tensor:
    with tf.device("/device:CPU:0"):
        return tf.strings.to_hash_bucket_strong(strings, tf.int64.max, _KEY)
