"""Rates of counters that grow. Pure: no clock."""

import collections
import threading
from collections.abc import Container
from collections.abc import Hashable

# A rate is of about the last ten seconds: long enough to be steady, and short
# enough that a pause shows.
_WINDOW_SECONDS = 10.0
# Readings that are closer to each other say nothing.
_LEAST_SECONDS = 0.2
# Number of readings of one counter that are kept.
_MOST_READINGS = 64


class Rates:
    """Rates of named counters, from readings at several moments.

    Threading: safe from any thread. Guarded by `_lock`: everything.
    """

    def __init__(self) -> None:
        """Begins without readings."""
        self._lock = threading.Lock()
        self._readings: dict[Hashable, collections.deque[_Reading]] = {}

    def of(self, name: Hashable, value: float, now: float) -> float | None:
        """Takes a reading of a counter, and returns its rate.

        Args:
            name: Name of the counter.
            value: What it counts now. If that is less than before, the counter
                has begun anew, and so does its rate.
            now: The time, in seconds, of a clock that only goes on.

        Returns:
            The growth in a second over the last ten seconds, or over the time
            since the latest reading before them; None after a first reading.
        """
        with self._lock:
            readings = self._readings.setdefault(
                name, collections.deque(maxlen=_MOST_READINGS)
            )
            if readings and value < readings[-1][1]:
                readings.clear()
            if not readings or now - readings[-1][0] >= _LEAST_SECONDS:
                readings.append((now, value))
            # One that is older than the window is where the window begins.
            while len(readings) > 2 and readings[1][0] <= now - _WINDOW_SECONDS:
                readings.popleft()
            then, before = readings[0]
            if now - then < _LEAST_SECONDS:
                return None
            return (value - before) / (now - then)

    def keep(self, names: Container[Hashable]) -> None:
        """Drops the readings of all other counters.

        Args:
            names: Names of the counters that there still are.
        """
        with self._lock:
            for gone in [each for each in self._readings if each not in names]:
                del self._readings[gone]


_Reading = tuple[float, float]
