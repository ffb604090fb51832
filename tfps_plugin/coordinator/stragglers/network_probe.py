"""Probe of the network between workers and parameter servers."""

import functools
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.coordinator.closures.remote_value import RemoteValue
from tfps_plugin.coordinator.lanes import first_calls
from tfps_plugin.variables.lookup import graph_checks

# A message of 256 KB: so much that a narrow link shows, and so little that even
# such a link is free again soon.
_NUM_FLOATS = 1 << 16
# The fastest of some counts: others may have met the messages of steps. The
# first one may also open a connection.
_NUM_TRIES = 3
# On a machine whose processors are busy, all of them may have waited for one.
# So they are repeated; not on a narrow link, where that would take long.
_MOST_CALLS = 5
_ENOUGH_SECONDS = 0.25
# Workers that slow ones are compared with: enough for a median.
_MOST_OTHERS = 7

Schedule = Callable[[int, Callable[[], Any]], RemoteValue | None]


class NetworkProbe:
    """Measures on workers what a message from each parameter server takes.

    Each worker asks for a tensor and waits for its arrival, by its own clock.

    Threading: one thread uses it; `stop` is called by any.
    """

    def __init__(
        self, schedule: Schedule, ps_devices: Callable[[], Sequence[str]]
    ) -> None:
        """Prepares; traces nothing yet.

        Args:
            schedule: Schedules a function on a worker without waiting; returns
                None if it does not.
            ps_devices: Returns the devices of the parameter servers.
        """
        self._schedule = schedule
        self._ps_devices = ps_devices
        self._changed = threading.Condition()
        self._is_stopped = False

    def stop(self) -> None:
        """Makes `measure` return soon."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def measure(
        self,
        workers: Collection[int],
        others: Collection[int],
        timeout_seconds: float,
    ) -> dict[int, dict[int, float]]:
        """Measures on several workers, on one at a time.

        So they do not take from each other what is measured.

        Args:
            workers: Indices of those that matter.
            others: Indices of those to compare them with. Only some of them
                are measured, and none if none of the others answers.
            timeout_seconds: How long to wait for each of them.

        Returns:
            The seconds by worker and parameter server; without workers that
            could not be asked, or did not answer in time.
        """
        ps_devices = list(self._ps_devices())
        if not ps_devices:
            return {}
        tasks = [tf.DeviceSpec.from_string(each).task for each in ps_devices]
        # Only devices of this process have none.
        indices = [
            place if task is None else task for place, task in enumerate(tasks)
        ]
        function = _traced(ps_devices, indices)
        found = self._measure(function, workers, timeout_seconds)
        if found:
            rest = [each for each in others if each not in workers]
            found |= self._measure(
                function, rest[:_MOST_OTHERS], timeout_seconds
            )
        return {
            worker: dict(zip(indices, seconds, strict=True))
            for worker, seconds in found.items()
        }

    def _measure(
        self,
        function: Callable[[], Any],
        workers: Collection[int],
        timeout_seconds: float,
    ) -> dict[int, list[float]]:
        found = {}
        for worker_index in workers:
            is_wanted = threading.Event()
            is_wanted.set()
            value = self._schedule(
                worker_index, functools.partial(_run, function, is_wanted)
            )
            if value is not None and self._wait(value, timeout_seconds):
                seconds = None if value.error else value.get()
                if seconds is not None:
                    found[worker_index] = seconds
            # It may still wait for its turn, and the program for it.
            is_wanted.clear()
        return found

    def _wait(self, value: RemoteValue, timeout_seconds: float) -> bool:
        """Waits for a result; returns whether it is there."""

        def note() -> None:
            with self._changed:
                self._changed.notify_all()

        value.on_ended(note)
        with self._changed:
            self._changed.wait_for(
                lambda: value.is_ready() or self._is_stopped, timeout_seconds
            )
        return value.is_ready()


def _traced(
    ps_devices: Sequence[str], indices: Collection[int]
) -> Callable[[], Any]:
    """Returns a function for a worker, with the results that follow."""

    @tf.autograph.experimental.do_not_convert
    def probe() -> tuple[tf.Tensor, tf.Tensor]:
        return _seconds_from_each(ps_devices)

    with tf.device(None):
        concrete = tf.function(probe).get_concrete_function()
    return first_calls.exclusive(concrete, indices)


def _run(
    function: Callable[[], Any], is_wanted: threading.Event
) -> list[float] | None:
    """Measures on the worker of the calling lane; None: it failed."""
    if not is_wanted.is_set():
        return None
    # An error here must not cancel the functions of the program: they meet it
    # themselves, if it lasts.
    fastest: list[float] | None = None
    until = time.monotonic() + _ENOUGH_SECONDS
    try:
        for _ in range(_MOST_CALLS):
            seconds = function()[0].numpy().tolist()
            fastest = list(map(min, fastest or seconds, seconds))
            if time.monotonic() >= until:
                break
    except Exception:
        return None
    return fastest


def _seconds_from_each(
    ps_devices: Sequence[str],
) -> tuple[tf.Tensor, tf.Tensor]:
    """Measures each parameter server; for use in a function.

    Returns:
        The seconds, and what has arrived. TensorFlow does not compute what is
        only waited for, so it has to be a result.
    """
    fastest, arrived = [], []
    # One after another, each by itself.
    with tf.device(graph_checks.CPU):
        begun_at = tf.timestamp()
    for device in ps_devices:
        tries = []
        for _ in range(_NUM_TRIES):
            # What travels depends on what the worker has sent.
            with tf.device(device):
                values = tf.fill([_NUM_FLOATS], tf.cast(begun_at, tf.float32))
            with tf.device(graph_checks.CPU):
                # It arrives as a whole before the worker looks at it.
                arrived.append(tf.reduce_max(values))
                with tf.control_dependencies([arrived[-1]]):
                    ended_at = tf.timestamp()
                tries.append(ended_at - begun_at)
            begun_at = ended_at
        with tf.device(graph_checks.CPU):
            fastest.append(tf.reduce_min(tf.stack(tries)))
    with tf.device(graph_checks.CPU):
        return tf.stack(fastest), tf.stack(arrived)
