"""Checks of who calls a coordinator, and with what."""

from collections.abc import Collection

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.calls import dispatch_context


def require_worker_index(value: object, indices: Collection[int]) -> None:
    """Refuses what is not the index of a worker.

    Args:
        value: What the program has passed.
        indices: Indices of the workers of the cluster.

    Raises:
        ValueError: If it is none of them.
    """
    num_workers = len(indices)
    is_range = list(indices) == [*range(num_workers)]
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value not in indices
    ):
        raise ValueError(
            "worker_index must be the index of a worker; expected "
            + (
                f"an integer from 0 to {num_workers - 1}"
                if is_range
                else f"one of {list(indices)}"
            )
            + f", because the cluster has {num_workers} workers. Received: "
            f"worker_index={value!r}. Pass one of coordinator.worker_indices, "
            "or call coordinator.schedule(), which chooses a worker itself."
        )


def refuse_inside(what: str) -> None:
    """Refuses calls that would wait for themselves, or run while tracing.

    Args:
        what: The method that was called.

    Raises:
        UnsupportedError: Inside a scheduled function, or while a `tf.function`
            is traced.
    """
    if dispatch_context.current() is not None:
        raise errors.UnsupportedError(
            f"coordinator.{what}() was called inside a scheduled function, so "
            "it would wait for itself; expected a call from the program's own "
            "thread. Return what you need, and call it there."
        )
    # The first question is the cheaper one.
    if not tf.executing_eagerly() and tf.inside_function():
        raise errors.UnsupportedError(
            f"coordinator.{what}() was called while a tf.function was "
            "traced, so it would run once and never again; expected a call "
            "from plain Python. Move it out of the tf.function."
        )
