"""Any ids as int64; of strings, 63 bits of a keyed hash."""

from typing import Any

import tensorflow as tf

from tfps_plugin import errors

# Key of SipHash-2-4 (Aumasson and Bernstein, "SipHash: a fast short-input
# PRF", 2012), which TensorFlow calls its strong hash.
_KEY = (0x7466_7073, 0x6964_7321)


def as_integers(ids: Any, owner: str) -> Any:
    """Returns ids as int64; strings become hashes.

    Args:
        ids: A dense, ragged or sparse tensor of integers or strings, or what
            TensorFlow converts to one. An unsigned number of 2**63 or more
            becomes the negative one with the same bits.
        owner: The layer or feature, for messages.

    Returns:
        The same kind of tensor.

    Raises:
        errors.InputError: If they are neither integers nor strings.
    """
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(_as_integers(ids.flat_values, owner))
    if isinstance(ids, tf.SparseTensor):
        return tf.SparseTensor(
            ids.indices, _as_integers(ids.values, owner), ids.dense_shape
        )
    return _as_integers(tf.convert_to_tensor(ids), owner)


def require_ids(dtype: Any, owner: str) -> None:
    """Refuses a dtype in which two ids may be the same number.

    Args:
        dtype: Dtype of the ids, of TensorFlow or as Keras names it.
        owner: The layer or feature, for messages.

    Raises:
        errors.InputError: If it is neither an integer nor a string.
    """
    dtype = tf.as_dtype(dtype)
    if dtype == tf.string or dtype.is_integer:
        return
    raise errors.InputError(
        f"The {owner} finds rows by the ids themselves, and other numbers may "
        "lose their difference: float32 has one number for 16777216 and "
        f"16777217. Expected: integers or strings. Received: dtype={dtype.name}"
        ". Use keras.Input(..., dtype='int64'), also as the first layer of a "
        "keras.Sequential; without a dtype it makes float32 of all ids."
    )


def _as_integers(ids: tf.Tensor, owner: str) -> tf.Tensor:
    if ids.shape.num_elements() == 0:
        # Of an empty list, TensorFlow makes float32.
        return tf.zeros(ids.shape, tf.int64)
    require_ids(ids.dtype, owner)
    with tf.device("/device:CPU:0"):
        if ids.dtype == tf.string:
            return tf.strings.to_hash_bucket_strong(ids, tf.int64.max, _KEY)
        return tf.cast(ids, tf.int64)
