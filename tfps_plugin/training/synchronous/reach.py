"""Waits until workers reach the parameter servers again.

After the loss of a parameter server, workers need a moment to connect to the
new process. The steps of a span would go on without those that fail.
"""

import threading
import time
from collections.abc import Callable
from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator

_MOST_SECONDS = 10.0
_SECONDS_BETWEEN_ATTEMPTS = 0.1


def new_probe(ps_devices: Sequence[str]) -> Callable[[], tf.Tensor]:
    """Returns a function that needs all parameter servers.

    Args:
        ps_devices: Device of each parameter server.
    """

    # A function, as steps are: eager copies between tasks that fail may leave
    # their error to whatever another thread does next.
    @tf.function(autograph=False)
    def probe() -> tf.Tensor:
        """Sends a number of each ps to the worker that runs it."""
        numbers = []
        for device in ps_devices:
            with tf.device(device):
                numbers.append(tf.timestamp())
        return tf.add_n(numbers)

    made: Callable[[], tf.Tensor] = probe
    return made


def wait_until_reached(
    coordinator: ClusterCoordinator,
    workers: Sequence[int],
    probe: Callable[[], tf.Tensor],
) -> None:
    """Waits until workers reach all parameter servers, ten seconds at most.

    Args:
        coordinator: Runs a function on each worker.
        workers: Indices of the workers. One that is lost meanwhile is waited
            for no longer than the others.
        probe: A function of `new_probe`. Kept by the caller, so that it is not
            traced anew after each loss.
    """
    deadline = time.monotonic() + _MOST_SECONDS
    waiting = threading.Event()
    left = list(workers)
    while left and time.monotonic() < deadline:
        attempts = {
            worker: coordinator.schedule_on(worker, probe) for worker in left
        }
        ended = {worker: threading.Event() for worker in attempts}
        for worker, attempt in attempts.items():
            attempt.on_ended(ended[worker].set)
        for each in ended.values():
            each.wait(max(0.0, deadline - time.monotonic()))
        left = [
            worker
            for worker, attempt in attempts.items()
            if not attempt.is_ready() or attempt.error is not None
        ]
        if left:
            waiting.wait(_SECONDS_BETWEEN_ATTEMPTS)
