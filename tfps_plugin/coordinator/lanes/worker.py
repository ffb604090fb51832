"""A worker as the coordinator drives it: a few lanes."""

from collections.abc import Collection
from collections.abc import Sequence

from tfps_plugin.coordinator.lanes.lane import Lane


class Worker:
    """One worker task, driven by a few threads of the chief: its lanes.

    Each lane runs one closure at a time, so a worker has as many closures in
    flight as it has lanes.

    Threading: started and joined by one thread; `busy_since`, `hangs_on`,
    `abandon` and `abandon_cancelled` may be called from any.
    """

    def __init__(self, worker_index: int, lanes: Sequence[Lane]) -> None:
        """Creates the worker; no lane runs before `start`."""
        self.worker_index = worker_index
        self._lanes = tuple(lanes)

    def start(self) -> None:
        """Starts the lanes."""
        # The last to lie down is the first to be woken, if it is needed.
        for lane in reversed(self._lanes):
            lane.start()

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the lanes to end, after the queue was stopped.

        Returns:
            Whether they all ended; each had `timeout_seconds`.
        """
        ended = [lane.join(timeout_seconds) for lane in self._lanes]
        return all(ended)

    def busy_since(self) -> float | None:
        """Since when (monotonic) the longest closure runs, if any does."""
        busy = [lane.busy_since() for lane in self._lanes]
        return min((each for each in busy if each is not None), default=None)

    def hangs_on(
        self, parameter_servers: Collection[int], before: float
    ) -> bool:
        """Whether a call from before a time needs any of these ps."""
        return any(
            lane.hangs_on(parameter_servers, before) for lane in self._lanes
        )

    def abandon(self) -> None:
        """Waits no longer for what runs: it runs again elsewhere."""
        for lane in self._lanes:
            lane.abandon()

    def abandon_cancelled(self, since: float) -> int:
        """Waits no longer for calls that were cancelled before a time.

        Args:
            since: The time (monotonic, in seconds).

        Returns:
            How many there were.
        """
        stuck = [
            lane for lane in self._lanes if lane.ignores_cancellation(since)
        ]
        for lane in stuck:
            lane.abandon()
        return len(stuck)
