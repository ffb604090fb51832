"""Worker, driven by a few lanes."""

from collections.abc import Collection
from collections.abc import Sequence

from tfps_plugin.coordinator.lanes.lane import Lane


class Worker:
    """One worker task, driven by a few threads of the chief: its lanes.

    Each lane runs one closure at a time, so the worker has at most as many
    closures in flight as it has lanes.

    Threading: started and joined by one thread; all else may be called from
    any.
    """

    def __init__(self, worker_index: int, lanes: Sequence[Lane]) -> None:
        """Creates the worker; no lane runs before `start`."""
        self.worker_index = worker_index
        self._lanes = tuple(lanes)

    def start(self) -> None:
        """Starts the lanes."""
        # The lane that becomes idle last is the first to get work.
        for lane in reversed(self._lanes):
            lane.start()

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the end of the lanes, after the queue was stopped.

        Args:
            timeout_seconds: How long to wait for each lane.

        Returns:
            Whether all of them ended.
        """
        ended = [lane.join(timeout_seconds) for lane in self._lanes]
        return all(ended)

    def busy_since(self) -> float | None:
        """Returns the start (monotonic) of the longest run; None: idle."""
        busy = [lane.busy_since() for lane in self._lanes]
        return min((each for each in busy if each is not None), default=None)

    @property
    def num_busy(self) -> int:
        """Number of functions that it runs now."""
        return sum(lane.busy_since() is not None for lane in self._lanes)

    def hangs_on(
        self, parameter_servers: Collection[int], before: float
    ) -> bool:
        """Returns whether a call from before a time needs any of the ps."""
        return any(
            lane.hangs_on(parameter_servers, before) for lane in self._lanes
        )

    def abandoned_call_needs(
        self, parameter_servers: Collection[int], before: float
    ) -> bool:
        """Returns whether an abandoned call goes on that needs any of the ps.

        Args:
            parameter_servers: Indices of ps.
            before: Only calls that began before this time (monotonic) count.
        """
        return any(
            lane.abandoned_call_needs(parameter_servers, before)
            for lane in self._lanes
        )

    def awaits_lost(self) -> bool:
        """Returns whether a call needs another worker that is lost."""
        return any(lane.awaits_lost() for lane in self._lanes)

    def abandon_awaiting(self) -> None:
        """Abandons calls that need another worker that is lost."""
        for lane in self._lanes:
            if lane.awaits_lost():
                lane.abandon()

    def abandon(self) -> None:
        """Abandons what runs: it runs again elsewhere, or is cancelled."""
        for lane in self._lanes:
            lane.abandon()

    def abandon_cancelled(self, since: float) -> int:
        """Abandons calls that were cancelled before a time and go on.

        Args:
            since: The time (monotonic, in seconds).

        Returns:
            Number of abandoned calls.
        """
        stuck = [
            lane for lane in self._lanes if lane.ignores_cancellation(since)
        ]
        for lane in stuck:
            lane.abandon()
        return len(stuck)
