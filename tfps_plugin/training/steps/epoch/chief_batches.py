"""Batches that the chief reads, encoded as strings."""

from typing import Any

import tensorflow as tf

from tfps_plugin.inputs.batch_codec import BatchCodec


class EncodedDataset:
    """A dataset of the chief whose batches are encoded as strings.

    The encoding is traced once, for all passes.

    Attributes:
        codec: Codec of the batches.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        """Prepares; reads nothing yet."""
        self.codec = BatchCodec(dataset.element_spec)
        with tf.device("/device:CPU:0"):
            self._encoded = self.codec.encoded(dataset)

    def begin_pass(self, first_batch: int = 0) -> "ChiefBatches":
        """Begins to read the dataset.

        Args:
            first_batch: Number of batches to skip.
        """
        if not first_batch:
            return ChiefBatches(self._encoded)
        with tf.device("/device:CPU:0"):
            return ChiefBatches(self._encoded.skip(first_batch))


class ChiefBatches:
    """Reads a dataset on the chief, in its order.

    Threading: only the thread that runs `fit` uses it.
    """

    def __init__(self, encoded: tf.data.Dataset) -> None:
        """Prepares; reads nothing yet."""
        self._dataset = encoded
        self._iterator: Any = None

    def read(self, most: int) -> list[tf.Tensor]:
        """Reads the next batches.

        Args:
            most: Number of batches; fewer if the dataset ends.

        Returns:
            String tensors of shape `(C,)`.
        """
        if self._iterator is None:
            with tf.device("/device:CPU:0"):
                self._iterator = iter(self._dataset)
        batches: list[tf.Tensor] = []
        while len(batches) < most:
            batch = next(self._iterator, None)
            if batch is None:
                break
            batches.append(batch)
        return batches
