"""Which share of the input the current thread is building.

A dataset function is traced once for each worker. While it is, whatever it
calls (`strategy.distribute_datasets_from_function` above all) asks here for
which worker that is.
"""

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

_thread_local = threading.local()


def for_worker(
    worker_index: int, num_workers: int
) -> tf.distribute.InputContext:
    """The input context of one worker of a cluster.

    Args:
        worker_index: Index of the worker.
        num_workers: How many workers read input, each its own share.

    Returns:
        A context with one input pipeline per worker and one replica in sync,
        because workers do not wait for each other.
    """
    return tf.distribute.InputContext(
        num_input_pipelines=num_workers,
        input_pipeline_id=worker_index,
        num_replicas_in_sync=1,
    )


@contextlib.contextmanager
def building_for(context: tf.distribute.InputContext) -> Iterator[None]:
    """Declares that this thread builds the input of `context`."""
    previous = current()
    _thread_local.context = context
    try:
        yield
    finally:
        _thread_local.context = previous


def current() -> tf.distribute.InputContext | None:
    """The input context of this thread; None where no input is built."""
    return getattr(_thread_local, "context", None)
