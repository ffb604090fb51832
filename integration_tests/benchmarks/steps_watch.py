"""Records when steps are made, from the optimizer's counter on its ps."""

import itertools
import threading
import time
from typing import Any

import tensorflow as tf

_POLL_SECONDS = 0.01


class StepsWatch(threading.Thread):
    """Records when the number of steps changes.

    It reads the counter about a hundred times a second.

    Attributes:
        seen: Times of `time.perf_counter`, and the values of the counter.
    """

    def __init__(self, iterations: Any) -> None:
        """Creates a watch, which begins with `start`.

        Args:
            iterations: The optimizer's counter.
        """
        super().__init__(daemon=True)
        self._iterations = iterations
        self._ended = threading.Event()
        self.seen: list[tuple[float, int]] = []

    def run(self) -> None:
        """Watches until it is stopped; sees nothing while a ps is away."""
        while not self._ended.wait(_POLL_SECONDS):
            try:
                steps = int(self._iterations.numpy())
            except tf.errors.OpError:
                continue
            if not self.seen or steps != self.seen[-1][1]:
                self.seen.append((time.perf_counter(), steps))

    def stop(self) -> None:
        """Stops the watch."""
        self._ended.set()
        self.join()

    def first_after(self, moment: float) -> float:
        """Returns the time at which the first step after a moment was seen."""
        return next(t for t, _ in self.seen if t > moment)

    def longest_gap(self, start: float, end: float) -> float:
        """Returns the longest time without a step, in seconds."""
        times = [t for t, _ in self.seen if start <= t <= end]
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)

    def rate(self, start: float, end: float) -> float:
        """Returns the steps per second between two moments."""
        inside = [(t, n) for t, n in self.seen if start <= t <= end]
        (t0, n0), (t1, n1) = inside[0], inside[-1]
        return (n1 - n0) / (t1 - t0)
