"""Pipelines that end when they are dropped."""

import tensorflow as tf

from tfps_plugin._compat import tensorflow_inputs


def without_tuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A pipeline that TensorFlow does not tune while it runs.

    TensorFlow tunes the parallelism of a pipeline in a thread of its own, and
    whoever drops an iterator waits for the end of it. That thread may miss
    that it is to end: `CancellationManager::StartCancel` wakes it before
    `IsCancelled` is true, and `Model::OptimizeLoop` then sleeps again, for up
    to a minute. Meanwhile a worker answers nothing, or the chief stands still
    in a garbage collection. On two busy cores that is what happens to most
    iterators that are older than some seconds (TensorFlow 2.20, 2.21).

    Without it, `AUTOTUNE` means as many calls at a time as there are cores, 16
    at most, and a prefetch buffer that grows while it is found empty.

    Args:
        dataset: Any dataset. If its options say whether it is to be tuned
            (`options.autotune.enabled`), it stays as it is.

    Returns:
        The same elements, and the next ones fetched ahead, as TensorFlow does
        of itself where it tunes.
    """
    if tensorflow_inputs.options_of(dataset).autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)
