"""Sees when steps are made, by reading the optimizer's counter on its ps."""

import itertools
import threading
import time
from typing import Any

import tensorflow as tf

_POLL_SECONDS = 0.01


class StepsWatch(threading.Thread):
    """Records when the number of steps was seen to change.

    It looks about a hundred times a second.

    Attributes:
        seen: Moments, of `time.perf_counter`, and the counter then.
    """

    def __init__(self, iterations: Any) -> None:
        """Watches, from `start` on.

        Args:
            iterations: The optimizer's counter.
        """
        super().__init__(daemon=True)
        self._iterations = iterations
        self._ended = threading.Event()
        self.seen: list[tuple[float, int]] = []

    def run(self) -> None:
        """Looks until it is stopped; while a ps is away, it sees nothing."""
        while not self._ended.wait(_POLL_SECONDS):
            try:
                steps = int(self._iterations.numpy())
            except tf.errors.OpError:
                continue
            if not self.seen or steps != self.seen[-1][1]:
                self.seen.append((time.perf_counter(), steps))

    def stop(self) -> None:
        """Ends it."""
        self._ended.set()
        self.join()

    def first_after(self, moment: float) -> float:
        """When the first step after a moment was seen."""
        return next(t for t, _ in self.seen if t > moment)

    def longest_gap(self, start: float, end: float) -> float:
        """Longest time without a step between two moments, in seconds."""
        times = [t for t, _ in self.seen if start <= t <= end]
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)

    def rate(self, start: float, end: float) -> float:
        """Steps per second between two moments."""
        inside = [(t, n) for t, n in self.seen if start <= t <= end]
        (t0, n0), (t1, n1) = inside[0], inside[-1]
        return (n1 - n0) / (t1 - t0)
