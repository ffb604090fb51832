"""Logs for the progress bar and batch callbacks during an epoch."""

import collections
import threading
import time
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.variables.chief import chief_reads

# The progress bar redraws no more often than this.
_SHOW_SECONDS = 0.1


class ProgressLogs:
    """Results of steps, averaged over the latest calls.

    A step returns the metrics of its lane so far; the average of the latest
    results is close to the metrics of all steps. The lanes fetch results a few
    times a second, or for every call if a callback uses every batch, so the
    thread that runs `fit` never waits for them. Other results are never sent.
    The exact metrics of an epoch are read from the metrics at its end.

    Threading: `report` is called by lanes, everything else by the thread that
    runs `fit`. Guarded by `_lock`: the results.
    """

    def __init__(self, num_lanes: int, *, show_all: bool = False) -> None:
        """Creates empty logs.

        Args:
            num_lanes: Number of closures that run at the same time.
            show_all: Whether to fetch the result of every call.
        """
        # Keras keeps a reference to this dictionary, so it is changed in
        # place.
        self.logs: dict[str, Any] = {}
        self._show_all = show_all
        self._lock = threading.Lock()
        self._latest: collections.deque[Any] = collections.deque(
            maxlen=num_lanes
        )
        self._fetched: collections.deque[Any] = collections.deque(
            maxlen=num_lanes
        )
        self._has_news = False
        self._fetched_at = -float("inf")

    def report(self, outputs: Any) -> Any:
        """Takes the result of the last step of a call.

        Args:
            outputs: Tensors, on the worker of the call.

        Returns:
            The same as arrays, if they were fetched; else None.
        """
        with self._lock:
            self._latest.append(outputs)
            now = time.monotonic()
            if not (self._show_all or now - self._fetched_at >= _SHOW_SECONDS):
                return None
            self._fetched_at = now
        fetched = _fetch(outputs)
        if fetched is not None:
            with self._lock:
                self._fetched.append(fetched)
                self._has_news = True
        return fetched

    def update(self) -> None:
        """Shows the results that lanes have fetched."""
        with self._lock:
            if not self._has_news:
                return
            self._has_news = False
            fetched = list(self._fetched)
        self._show(fetched)

    def finish(self) -> None:
        """Shows the last results; every call has ended."""
        with self._lock:
            latest = list(self._latest)
            self._has_news = False
        self._show(
            [f for outputs in latest if (f := _fetch(outputs)) is not None]
        )

    def _show(self, fetched: list[Any]) -> None:
        if fetched and isinstance(fetched[0], dict):
            self.logs.update(
                tf.nest.map_structure(
                    lambda *values: np.mean(values, axis=0), *fetched
                )
            )


def _fetch(outputs: Any) -> Any:
    """Fetches results as arrays; returns None if their worker is lost."""
    try:
        arrays = chief_reads.to_arrays(tf.nest.flatten(outputs))
        return tf.nest.pack_sequence_as(outputs, arrays)
    except tf.errors.OpError as error:
        if not chief_reads.is_about_the_cluster(error):
            raise
        return None  # others are shown
