"""Share of the time in which a process computes.

The processor time of a process says how much it computes, not for how long:
four threads that compute for a quarter of a second take a second of it. So the
process is looked at in short slices: in each it computes all the time if it
takes as much processor time as the slice is long, or more.
"""

import collections
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence

_SLICE_SECONDS = 0.004
_SLICES = 25
# Bursts of slices that the share is a mean of.
_BURSTS = 5


def share_of(slices: Sequence[tuple[float, float]]) -> float:
    """Returns the share of some slices in which a process computes. Pure.

    Args:
        slices: Pairs of the processor time that a slice has taken, and of its
            length, both in seconds.
    """
    total = sum(length for _, length in slices)
    if not total:
        return 0.0
    return sum(min(taken, length) for taken, length in slices) / total


class BusyShare:
    """The share, as a mean of the latest bursts of slices.

    Threading: one thread calls `measure`.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        processor_clock: Callable[[], float] = time.process_time,
    ) -> None:
        """Begins without bursts.

        Args:
            clock: Returns the time, in seconds.
            processor_clock: Returns the processor time of all threads of this
                process.
        """
        self._clock = clock
        self._processor_clock = processor_clock
        self._bursts: collections.deque[float] = collections.deque(
            maxlen=_BURSTS
        )

    def measure(self, stopped: threading.Event) -> float:
        """Looks at the process for a tenth of a second.

        Args:
            stopped: Ends the look early.

        Returns:
            The share, from 0 to 1.
        """
        slices = []
        now, taken = self._clock(), self._processor_clock()
        for _ in range(_SLICES):
            if stopped.wait(_SLICE_SECONDS):
                break
            later, taken_later = self._clock(), self._processor_clock()
            slices.append((taken_later - taken, later - now))
            now, taken = later, taken_later
        self._bursts.append(share_of(slices))
        return sum(self._bursts) / len(self._bursts)
