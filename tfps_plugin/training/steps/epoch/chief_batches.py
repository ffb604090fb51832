"""Batches that the chief reads, encoded as strings."""

from collections.abc import Iterator

import tensorflow as tf

from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.strategy.replicas import split_batches


class EncodedDataset:
    """A dataset of the chief whose batches are encoded as strings.

    The encoding is traced once, for all passes.

    Attributes:
        codec: Codec of the batches.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        """Prepares; reads nothing yet."""
        dataset = split_batches.whole_dataset(dataset)
        self.codec = BatchCodec(dataset.element_spec)
        with tf.device("/device:CPU:0"):
            self._encoded = self.codec.encoded(dataset)

    def begin_pass(self, first_batch: int = 0) -> Iterator[tf.Tensor]:
        """Yields the batches, as string tensors of shape `(C,)`.

        Args:
            first_batch: Number of batches to skip.
        """
        with tf.device("/device:CPU:0"):
            encoded = self._encoded
            if first_batch:
                encoded = encoded.skip(first_batch)
            batches = iter(encoded)
        yield from batches
