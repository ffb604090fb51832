"""Datasets without TensorFlow's tuning thread, which delays their deletion."""

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_inputs


def without_tuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset that TensorFlow does not tune while it runs.

    TensorFlow tunes the parallelism of a dataset in a thread of its own, and
    deleting an iterator waits for that thread. The thread may miss its
    cancellation: `CancellationManager::StartCancel` wakes it before
    `IsCancelled` is true, and `Model::OptimizeLoop` then sleeps again, for up
    to a minute. Meanwhile a worker does not answer, or the chief is stuck in
    a garbage collection. On two busy cores this affects most iterators that
    are older than a few seconds (TensorFlow 2.20, 2.21).

    Without tuning, `AUTOTUNE` means one parallel call per core, 16 at most,
    and a prefetch buffer that grows whenever it runs empty.

    Args:
        dataset: Any dataset. If its option `autotune.enabled` is set, it is
            returned unchanged.

    Returns:
        A dataset of the same elements, with a prefetch buffer, which
        TensorFlow also adds to datasets that it tunes.
    """
    if tensorflow_inputs.options_of(dataset).autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)
