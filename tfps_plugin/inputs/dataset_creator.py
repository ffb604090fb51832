"""`tfps.DatasetCreator`: input that every worker makes for itself."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.inputs import input_context


class DatasetCreator(keras_compat.DataAdapter):
    """Input for `fit`, `evaluate` and `predict`, built on the workers.

    ```python
    def dataset_fn(context):
        files = tf.data.Dataset.list_files("train-*.tfrecord")
        files = files.shard(
            context.num_input_pipelines, context.input_pipeline_id
        )
        return tf.data.TFRecordDataset(files).repeat().batch(64)


    model.fit(tfps.DatasetCreator(dataset_fn), steps_per_epoch=1000)
    ```

    The function runs once for each worker and gets that worker's own
    `tf.distribute.InputContext`. For `predict` it runs on the chief, as the
    only pipeline.
    """

    def __init__(
        self,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        input_options: tf.distribute.InputOptions | None = None,
    ) -> None:
        """Creates the input; calls nothing yet.

        Args:
            dataset_fn: Returns a batched `tf.data.Dataset` for the pipeline
                that its `tf.distribute.InputContext` describes.
            input_options: As in `tf.keras.utils.experimental.DatasetCreator`.

        Raises:
            InputError: If `dataset_fn` is not callable, or `input_options`
                ask for one pipeline per replica.
        """
        if not callable(dataset_fn):
            raise errors.InputError(
                "DatasetCreator takes a function of a "
                "tf.distribute.InputContext that returns a tf.data.Dataset. "
                f"Received: dataset_fn={dataset_fn!r}"
            )
        per_replica = tf.distribute.InputReplicationMode.PER_REPLICA
        if input_options is not None and (
            input_options.experimental_replication_mode == per_replica
        ):
            raise errors.InputError(
                "DatasetCreator builds one pipeline per worker. Received: "
                f"input_options={input_options!r}. Leave "
                "experimental_replication_mode at PER_WORKER."
            )
        self.dataset_fn = dataset_fn
        self.input_options = input_options

    def build(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Calls the function for one pipeline.

        Args:
            context: Which pipeline, of how many.

        Returns:
            The dataset.

        Raises:
            InputError: If the function returns anything else.
        """
        dataset = self.dataset_fn(context)
        if not isinstance(dataset, tf.data.Dataset):
            raise errors.InputError(
                "The function of a DatasetCreator must return a "
                f"tf.data.Dataset. Received: {dataset!r} from "
                f"{self.dataset_fn!r}"
            )
        return dataset

    # What Keras asks of a data adapter.

    def get_tf_dataset(self) -> tf.data.Dataset:
        """The dataset of the only pipeline, for the chief alone."""
        return self.build(
            input_context.current() or tf.distribute.InputContext()
        )

    def get_numpy_iterator(self) -> Any:
        """The same, as arrays."""
        return self.get_tf_dataset().as_numpy_iterator()

    @property
    def num_batches(self) -> int | None:
        """Unknown: it depends on what every worker reads."""
        return None

    @property
    def batch_size(self) -> int | None:
        """Unknown before the function was called."""
        return None

    @property
    def has_partial_batch(self) -> bool | None:
        """Unknown before the function was called."""
        return None

    @property
    def partial_batch_size(self) -> int | None:
        """Unknown before the function was called."""
        return None
