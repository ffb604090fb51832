"""Shares of encoded batches, one for each of several workers.

Shape legend: C parts of a batch, M shares.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.inputs import batch_rows
from tfps_plugin.inputs.batch_codec import BatchCodec

_CPU = "/device:CPU:0"


class BatchCutter:
    """Cuts batches along the axis of their examples, on the chief.

    Threading: one thread uses it.
    """

    def __init__(self, codec: BatchCodec) -> None:
        """Prepares for batches of one type; traces nothing yet.

        Args:
            codec: Codec of the batches.
        """
        self._codec = codec
        spec = tf.TensorSpec([codec.num_parts], tf.string)
        self._sizes_of = tf.function(
            lambda parts_C: _sizes(codec.decode(parts_C)),
            input_signature=[spec],
            autograph=False,
        )
        # A tensor: when a worker is lost, nothing is traced anew.
        self._cut = tf.function(
            self._shares,
            input_signature=[spec, tf.TensorSpec([], tf.int64)],
            autograph=False,
        )

    def num_examples(self, parts_C: tf.Tensor) -> int:
        """Returns the number of examples of a batch.

        Args:
            parts_C: The batch, as strings of shape `(C,)`.

        Raises:
            InputError: If its parts have different numbers.
        """
        with tf.device(_CPU):
            sizes = {*self._sizes_of(parts_C).numpy().tolist()}
        if len(sizes) > 1:
            raise errors.InputError(
                "A batch is cut along the first axis of its parts, for workers "
                "that make a step together. Expected parts with one row for "
                f"each example. Received: parts of {sorted(sizes)} rows. Give "
                "such input by a tfps.DatasetCreator, whose batches stay whole."
            )
        return int(*sizes) if sizes else 1

    def cut(self, parts_C: tf.Tensor, num_shares: int) -> tf.Tensor:
        """Cuts a batch into shares of about as many examples each.

        Args:
            parts_C: The batch, as strings of shape `(C,)`.
            num_shares: Number of shares, M; not more than there are examples.

        Returns:
            The shares in order, as strings of shape `(M, C)`.
        """
        if num_shares == 1:
            return parts_C[tf.newaxis]
        with tf.device(_CPU):
            return self._cut(parts_C, tf.constant(num_shares, tf.int64))

    def _shares(self, parts_C: tf.Tensor, num_shares: tf.Tensor) -> tf.Tensor:
        batch = self._codec.decode(parts_C)
        size = _sizes(batch)[0]

        def share(place: tf.Tensor) -> tf.Tensor:
            begin = _begin(size, place, num_shares)
            end = _begin(size, place + 1, num_shares)
            return self._codec.encode_one(batch_rows.between(batch, begin, end))

        return tf.map_fn(
            share,
            tf.range(num_shares),
            fn_output_signature=tf.TensorSpec(
                [self._codec.num_parts], tf.string
            ),
        )


def size_of_share(num_examples: int, place: int, num_shares: int) -> int:
    """Returns the number of examples of one share of a batch.

    Args:
        num_examples: Number of examples of the batch.
        place: Number of the share, from zero.
        num_shares: Number of shares.
    """
    end = _begin(num_examples, place + 1, num_shares)
    return end - _begin(num_examples, place, num_shares)


def _begin(size: Any, place: int, num_shares: int) -> Any:
    return size * place // num_shares


def _sizes(batch: Any) -> tf.Tensor:
    """Returns the size of each part of a batch that is no scalar, int64."""
    sizes = batch_rows.sizes(batch)
    return tf.stack(sizes) if sizes else tf.zeros([0], tf.int64)
