"""Any ids as int64; of strings, 63 bits of a keyed hash."""

from typing import Any

import tensorflow as tf

# Key of SipHash-2-4 (Aumasson and Bernstein, "SipHash: a fast short-input
# PRF", 2012), which TensorFlow calls its strong hash.
_KEY = (0x7466_7073, 0x6964_7321)


def as_integers(ids: Any) -> Any:
    """Returns ids as int64; strings become hashes.

    Args:
        ids: A dense, ragged or sparse tensor of numbers or strings, or what
            TensorFlow converts to one. An unsigned number of 2**63 or more
            becomes the negative one with the same bits.

    Returns:
        The same kind of tensor.
    """
    if isinstance(ids, tf.RaggedTensor):
        return tf.ragged.map_flat_values(_as_integers, ids)
    if isinstance(ids, tf.SparseTensor):
        return tf.SparseTensor(
            ids.indices, _as_integers(ids.values), ids.dense_shape
        )
    return _as_integers(tf.convert_to_tensor(ids))


def _as_integers(ids: tf.Tensor) -> tf.Tensor:
    with tf.device("/device:CPU:0"):
        if ids.dtype == tf.string:
            return tf.strings.to_hash_bucket_strong(ids, tf.int64.max, _KEY)
        return tf.cast(ids, tf.int64)
