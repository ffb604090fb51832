"""Batches that the chief reads, as strings."""

from typing import Any

import tensorflow as tf

from tfps_plugin.inputs.batch_codec import BatchCodec


class ChiefBatches:
    """Reads a dataset on the chief, in its order.

    Threading: used by the thread that runs `fit` alone.
    """

    def __init__(self, dataset: tf.data.Dataset, codec: BatchCodec) -> None:
        """Prepares; reads nothing yet.

        Args:
            dataset: The batches.
            codec: Of its batches.
        """
        with tf.device("/device:CPU:0"):
            self._dataset = codec.encoded(dataset)
        self._iterator: Any = None

    def read(self, most: int) -> list[tf.Tensor]:
        """Reads the next batches.

        Args:
            most: How many; fewer where the dataset ends.

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
