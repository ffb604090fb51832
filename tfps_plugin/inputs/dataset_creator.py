"""`tfps.DatasetCreator`: input that every worker makes for itself."""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.inputs import input_context
from tfps_plugin.inputs.splits import Visitation


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

    With `splits`, workers ask for work instead of having their share: each
    takes the next split when it has read the one before, so that a slow worker
    holds nobody up:

    ```python
    def dataset_fn(file):
        return tf.data.TFRecordDataset(file).map(parse).batch(64)


    files = tf.io.gfile.glob("train-*.tfrecord")
    model.fit(tfps.DatasetCreator(dataset_fn, splits=files), epochs=3)
    ```

    Without `steps_per_epoch`, an epoch is all of the data: every element once
    as long as nothing fails. What a worker was reading when it was lost is
    read again by others, from the beginning of its split (at least once), or
    left out (at most once).
    """

    def __init__(
        self,
        dataset_fn: Callable[[Any], tf.data.Dataset],
        input_options: tf.distribute.InputOptions | None = None,
        *,
        splits: Sequence[Any] | Callable[[int], Sequence[Any]] | None = None,
        visitation: str | Visitation = Visitation.AT_LEAST_ONCE,
    ) -> None:
        """Creates the input; calls nothing yet.

        Args:
            dataset_fn: Returns a batched `tf.data.Dataset` for the pipeline
                that its `tf.distribute.InputContext` describes; with `splits`,
                for the split that it is given, as tensors. A function that
                needs Python's strings, such as names of files that it opens,
                is given the split as it was listed, and is traced for each.
            input_options: As in `tf.keras.utils.experimental.DatasetCreator`.
                Elements are read in the worker's host memory, one batch
                ahead, whatever `experimental_fetch_to_device` says; options
                that ask for anything else are refused.
            splits: The parts of the input: names of files, ranges, or any
                nested structures that tensors can be made of, all of one
                type; or a function of the number of the pass, from 0, that
                returns them, such as one that shuffles them.
            visitation: What becomes of what a lost worker was reading:
                `"at_least_once"` or `"at_most_once"`.

        Raises:
            InputError: If `dataset_fn` is not callable, `input_options` ask
                for what workers do not do, or `visitation` is none of the
                two.
        """
        if not callable(dataset_fn):
            raise errors.InputError(
                "DatasetCreator takes a function of a "
                "tf.distribute.InputContext, or of a split, that returns a "
                "tf.data.Dataset. "
                f"Received: dataset_fn={dataset_fn!r}"
            )
        _check_options(input_options)
        self.dataset_fn = dataset_fn
        self.input_options = input_options
        self.splits = splits
        self.visitation = Visitation.parse(visitation)

    def build(self, share: Any) -> tf.data.Dataset:
        """Calls the function for one pipeline, or one split.

        Args:
            share: A `tf.distribute.InputContext`: which pipeline, of how
                many; or a split.

        Returns:
            The dataset.

        Raises:
            InputError: If the function returns anything else.
        """
        dataset = self.dataset_fn(share)
        if not isinstance(dataset, tf.data.Dataset):
            raise errors.InputError(
                "The function of a DatasetCreator must return a "
                f"tf.data.Dataset. Received: {dataset!r} from "
                f"{self.dataset_fn!r}"
            )
        return dataset

    # What Keras asks of a data adapter.

    def get_tf_dataset(self) -> tf.data.Dataset:
        """The dataset of the only pipeline, for the chief alone.

        With splits: of all of them, one after the other.
        """
        if self.splits is not None:
            splits = self.splits(0) if callable(self.splits) else self.splits
            try:
                return self._in_one_pipeline(splits)
            except errors.TfpsError:
                raise
            except Exception:
                # It needs strings, such as names of files that it opens.
                return functools.reduce(
                    lambda before, split: before.concatenate(self.build(split)),
                    splits[1:],
                    self.build(splits[0]),
                )
        return self.build(
            input_context.current() or tf.distribute.InputContext()
        )

    def _in_one_pipeline(self, splits: Sequence[Any]) -> tf.data.Dataset:
        stacked = tf.nest.map_structure(
            lambda *parts: tf.stack(
                [
                    tf.convert_to_tensor(part, dtype_hint=tf.int64)
                    for part in parts
                ]
            ),
            *splits,
        )
        return tf.data.Dataset.from_tensor_slices(stacked).flat_map(
            lambda *split: self.build(
                split if isinstance(stacked, tuple) else split[0]
            )
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


def _check_options(options: tf.distribute.InputOptions | None) -> None:
    """Refuses what would otherwise be dropped without a word."""
    if options is None:
        return
    refused = {
        "experimental_replication_mode": (
            tf.distribute.InputReplicationMode.PER_WORKER,
            "a worker has one pipeline",
        ),
        "experimental_place_dataset_on_device": (
            False,
            "datasets run in the worker's host memory",
        ),
        "experimental_per_replica_buffer_size": (
            1,
            "for more batches ahead, end the dataset with .prefetch(n)",
        ),
    }
    for name, (only, why) in refused.items():
        received = getattr(options, name)
        if received != only:
            raise errors.InputError(
                f"DatasetCreator takes no {name} other than {only}: {why}. "
                f"Received: {name}={received!r}"
            )
