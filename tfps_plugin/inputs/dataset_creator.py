"""`tfps.DatasetCreator`: input that every worker creates for itself."""

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
    """Input of `fit`, `evaluate` and `predict` that is built on the workers.

    ```python
    def dataset_fn(context):
        files = tf.data.Dataset.list_files("train-*.tfrecord")
        files = files.shard(
            context.num_input_pipelines, context.input_pipeline_id
        )
        return tf.data.TFRecordDataset(files).repeat().batch(64)


    model.fit(tfps.DatasetCreator(dataset_fn), steps_per_epoch=1000)
    ```

    The function is called once for each worker, with that worker's own
    `tf.distribute.InputContext`. For `predict` it is called on the chief, as
    the only pipeline.

    With `splits`, workers take parts of the input on demand instead of having
    fixed shares: each takes the next split when it has read the one before, so
    that a slow worker does not delay the others:

    ```python
    def dataset_fn(file):
        return tf.data.TFRecordDataset(file).map(parse).batch(64)


    files = tf.io.gfile.glob("train-*.tfrecord")
    model.fit(tfps.DatasetCreator(dataset_fn, splits=files), epochs=3)
    ```

    Without `steps_per_epoch`, an epoch is the whole input: every element once,
    as long as nothing fails. When a worker is lost, its split is read again
    by others from the beginning (at least once), or the rest of it is left
    out (at most once).

    Threading: immutable, so safe from any thread.

    Attributes:
        dataset_fn: The function, as passed.
        input_options: The options, as passed.
        splits: The splits, or the function that lists them; None without.
        visitation: The visitation, as an enumeration.
    """

    def __init__(
        self,
        dataset_fn: Callable[[Any], tf.data.Dataset],
        input_options: tf.distribute.InputOptions | None = None,
        *,
        splits: Sequence[Any] | Callable[[int], Sequence[Any]] | None = None,
        visitation: str | Visitation = Visitation.AT_LEAST_ONCE,
    ) -> None:
        """Creates the input; does not call the function yet.

        Args:
            dataset_fn: Function that returns a batched `tf.data.Dataset`. Its
                argument is the `tf.distribute.InputContext` of the pipeline;
                with `splits`, a split, as tensors. A function that needs
                Python strings, such as names of files that it opens, gets
                each split as it was listed, and is traced for each.
            input_options: As in `tf.keras.utils.experimental.DatasetCreator`.
                Elements are always read in the worker's host memory, one
                batch ahead, whatever `experimental_fetch_to_device` is; other
                values than the defaults are refused.
            splits: Parts of the input: names of files, ranges, or any nested
                structures convertible to tensors, all of one type; Python
                integers become int64. Or a function of the number of the
                pass, from 0, that returns such a list, for instance shuffled.
            visitation: Treatment of the split of a lost worker:
                `"at_least_once"` or `"at_most_once"`.

        Raises:
            InputError: If `dataset_fn` is not callable, `input_options` has
                unsupported values, or `visitation` is neither of the two.
        """
        if not callable(dataset_fn):
            raise errors.InputError(
                "DatasetCreator takes a function of a "
                "tf.distribute.InputContext, or of a split, that returns a "
                f"tf.data.Dataset. Received: dataset_fn={dataset_fn!r}"
            )
        _check_options(input_options)
        self.dataset_fn = dataset_fn
        self.input_options = input_options
        self.splits = splits
        self.visitation = Visitation.parse(visitation)

    def build(self, share: Any) -> tf.data.Dataset:
        """Calls the function for one pipeline or one split.

        Args:
            share: The `tf.distribute.InputContext` of the pipeline, or a
                split.

        Returns:
            The dataset.

        Raises:
            InputError: If the function does not return a `tf.data.Dataset`.
        """
        dataset = self.dataset_fn(share)
        if not isinstance(dataset, tf.data.Dataset):
            raise errors.InputError(
                "The function of a DatasetCreator must return a "
                f"tf.data.Dataset. Received: result={dataset!r} from "
                f"dataset_fn={self.dataset_fn!r}"
            )
        return dataset

    # The interface of Keras's data adapters.

    def get_tf_dataset(self) -> tf.data.Dataset:
        """Returns the dataset for reading on the chief alone.

        Returns:
            The dataset of the only pipeline; with splits, that of all of
            them, one after the other.

        Raises:
            InputError: If the function does not return a `tf.data.Dataset`.
        """
        if self.splits is not None:
            splits = self.splits(0) if callable(self.splits) else self.splits
            try:
                return self._in_one_pipeline(splits)
            except errors.TfpsError:
                raise
            except Exception:
                # The function needs Python strings, such as file names.
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
        """Returns an iterator over the same elements, as NumPy arrays."""
        return self.get_tf_dataset().as_numpy_iterator()

    @property
    def num_batches(self) -> int | None:
        """None, because it depends on the data that every worker reads."""
        return None

    @property
    def batch_size(self) -> int | None:
        """None, because it is unknown before the function is called."""
        return None

    @property
    def has_partial_batch(self) -> bool | None:
        """None, because it is unknown before the function is called."""
        return None

    @property
    def partial_batch_size(self) -> int | None:
        """None, because it is unknown before the function is called."""
        return None


def _check_options(options: tf.distribute.InputOptions | None) -> None:
    """Refuses options that would otherwise be ignored silently."""
    if options is None:
        return
    refused = {
        "experimental_replication_mode": (
            tf.distribute.InputReplicationMode.PER_WORKER,
            "a worker has one pipeline",
        ),
        "experimental_place_dataset_on_device": (
            False,
            "datasets are placed in the worker's host memory",
        ),
        "experimental_per_replica_buffer_size": (
            1,
            "to read more batches ahead, end the dataset with .prefetch(n)",
        ),
    }
    for name, (only, why) in refused.items():
        received = getattr(options, name)
        if received != only:
            raise errors.InputError(
                f"DatasetCreator takes no {name} other than {only}: {why}. "
                f"Received: {name}={received!r}"
            )
