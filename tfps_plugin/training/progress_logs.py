"""What the progress bar and batch callbacks are shown during an epoch."""

import collections
import time
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.coordinator.remote_value import RemoteValue

# The progress bar redraws no more often than this.
_SHOW_SECONDS = 0.1


class ProgressLogs:
    """Results of steps, averaged over the workers that ran the latest ones.

    A worker's step returns the metrics of that worker so far; the average of
    the latest results is close to those of all. They are brought here a few
    times a second, or for every call when a callback looks at every batch;
    results that nobody would see are never sent. The exact metrics of an
    epoch are read from the metrics themselves at its end.

    Threading: used by the thread that runs `fit` alone.
    """

    def __init__(self, num_lanes: int) -> None:
        """Creates empty logs.

        Args:
            num_lanes: How many closures run at the same time.
        """
        # Keras holds on to the dictionary of an epoch, so it is changed in
        # place.
        self.logs: dict[str, Any] = {}
        self._in_flight: collections.deque[RemoteValue] = collections.deque()
        self._latest: collections.deque[RemoteValue] = collections.deque(
            maxlen=num_lanes
        )
        # Twice what runs: one more waits for every lane that gets free.
        self._most_in_flight = 2 * num_lanes
        self._shown_at = -float("inf")

    def add(self, result: RemoteValue, *, show_all: bool) -> None:
        """Takes the result of one more call.

        Waits while too many are in flight, so that the progress bar and batch
        callbacks are never far ahead of the workers.

        Args:
            result: What the call will return.
            show_all: Whether every call's result is to be shown.
        """
        self._in_flight.append(result)
        seen = False
        while self._in_flight and (
            self._in_flight[0].is_ready()
            or len(self._in_flight) > self._most_in_flight
        ):
            oldest = self._in_flight.popleft()
            oldest.get()
            self._latest.append(oldest)
            seen = True
        due = time.monotonic() - self._shown_at >= _SHOW_SECONDS
        if seen and (show_all or due):
            self._show()

    def finish(self) -> None:
        """Shows the last results; every call has ended."""
        while self._in_flight:
            self._latest.append(self._in_flight.popleft())
        self._show()

    def clear(self) -> None:
        """Forgets everything, as at the beginning of an epoch."""
        self.logs = {}
        self._in_flight.clear()
        self._latest.clear()
        self._shown_at = -float("inf")

    def _show(self) -> None:
        fetched = []
        for result in self._latest:
            try:
                outputs = result.fetch()
            except errors.WorkerLostError:
                continue  # its worker died after the call: others show
            if isinstance(outputs, dict):
                fetched.append(outputs)
        if fetched:
            self.logs.update(
                tf.nest.map_structure(
                    lambda *values: np.mean(values, axis=0), *fetched
                )
            )
        self._shown_at = time.monotonic()
