"""Exclusive first calls of functions on workers; see `WorkerCalls`."""

import functools
from collections.abc import Callable
from collections.abc import Collection
from typing import Any
from typing import TypeVar

from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.worker_calls import InFlightCall

T = TypeVar("T")


def exclusive(
    function: Callable[..., T],
    parameter_servers: Collection[int] = (),
    workers: Collection[int] = (),
) -> Callable[..., T]:
    """Makes a function's first call on each worker exclusive there.

    The functions of `fit` and every scheduled `tf.function` are wrapped. Not
    so functions that a scheduled Python callable calls by itself: nothing
    tells us of them.

    Args:
        function: A concrete function.
        parameter_servers: Indices of the ps that hold what it works on.
        workers: Indices of the workers that it places operations on.

    Returns:
        A callable of the same arguments, with the attribute `pinned_workers`:
        the indices of the workers. On a lane, its first call in each
        generation of a worker, and after each change of the cluster, waits
        until no other such call runs on the worker, and others wait for it.
        A call that needs a worker which is away is not made: see `require`.
        On other threads it just calls the function. It may be called from any
        thread.
    """

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> T:
        context = dispatch_context.current()
        if context is None or context.worker_calls is None:
            return function(*args, **kwargs)
        cluster_state = context.generation, context.num_changes
        in_flight = context.call or InFlightCall()
        in_flight.pinned = require(workers)
        with (
            context.worker_calls.calling(function, cluster_state),
            in_flight.needing(parameter_servers),
        ):
            return function(*args, **kwargs)

    call.pinned_workers = frozenset(workers)  # type: ignore[attr-defined]
    return call


def require(workers: Collection[int]) -> dict[int, int]:
    """Keeps other workers from leaving until the closure of a lane has ended.

    Args:
        workers: Indices of the workers that a call needs.

    Returns:
        The generations of those that are not the lane's own.

    Raises:
        PlacementError: If one was removed.
        WorkerAwayError: If one is away or leaves; the closure runs later.
        WorkerLostError: If one has been away for too long.
    """
    context = dispatch_context.current()
    if not workers or context is None or context.other_workers is None:
        return {}
    others = [each for each in workers if each != context.worker_index]
    return context.other_workers.require(others) if others else {}


def release() -> None:
    """Lets the other workers of a lane's closure leave, before it waits."""
    context = dispatch_context.current()
    if context is None:
        return
    if context.call is not None:
        # It may wait for as long as they are away.
        context.call.pinned = {}
    if context.other_workers is not None:
        context.other_workers.release()
