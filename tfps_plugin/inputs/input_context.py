"""Input context of the current thread: the share of the input it is building.

A dataset function is traced once for each worker. Meanwhile, functions that it
calls, `strategy.distribute_datasets_from_function` above all, find the worker
here.
"""

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

_thread_local = threading.local()


def for_worker(
    worker_index: int, num_workers: int
) -> tf.distribute.InputContext:
    """Returns the input context of one worker of a cluster.

    Args:
        worker_index: Index of the worker.
        num_workers: Number of workers, each of which reads its own share.

    Returns:
        A context with one input pipeline per worker. Its number of replicas in
        sync is that of the batches that make a step of the strategy in scope:
        one of each worker, if they make steps together; else one. The replicas
        of a worker share its batch.
    """
    strategy = tf.distribute.get_strategy()
    number = getattr(strategy.extended, "num_batches_in_sync", None)
    return tf.distribute.InputContext(
        num_input_pipelines=num_workers,
        input_pipeline_id=worker_index,
        num_replicas_in_sync=number or strategy.num_replicas_in_sync,
    )


@contextlib.contextmanager
def building_for(context: tf.distribute.InputContext) -> Iterator[None]:
    """Sets the input context of this thread inside a `with` block."""
    previous = current()
    _thread_local.context = context
    try:
        yield
    finally:
        _thread_local.context = previous


def current() -> tf.distribute.InputContext | None:
    """Returns the input context of this thread; None outside of a build."""
    return getattr(_thread_local, "context", None)
