"""History of a job: points of the curves. Pure."""

import collections
from typing import Any

from tfps_plugin.monitoring.state.cluster_state import ClusterState

# An hour, with a point each second.
_LENGTH = 3600


class History:
    """The latest points, oldest first.

    Not thread-safe.
    """

    def __init__(self) -> None:
        """Begins without points."""
        self._points: collections.deque[dict[str, Any]] = collections.deque(
            maxlen=_LENGTH
        )

    def add(self, state: ClusterState) -> dict[str, Any]:
        """Adds the point of a state, unless it is there; returns it."""
        point = point_of(state)
        # A job that is asked more often tells the same state again.
        if self._points and self._points[-1]["time"] == point["time"]:
            self._points.pop()
        self._points.append(point)
        return point

    @property
    def points(self) -> list[dict[str, Any]]:
        """The points, oldest first."""
        return list(self._points)


def point_of(state: ClusterState) -> dict[str, Any]:
    """Returns what curves need of a state.

    Args:
        state: The state.

    Returns:
        Its time, the speeds, the loss, and by name of the parameter server its
        memory and traffic. What is unknown is None.
    """
    return {
        "time": state.time,
        "steps_per_second": state.job.steps_per_second,
        "examples_per_second": state.job.examples_per_second,
        "loss": _finite(state.job.loss),
        "memory_bytes": {
            ps.name: ps.memory_bytes for ps in state.parameter_servers
        },
        "traffic_bytes_per_second": {
            ps.name: None
            if ps.received_bytes_per_second is None
            else ps.received_bytes_per_second + (ps.sent_bytes_per_second or 0)
            for ps in state.parameter_servers
        },
    }


def _finite(value: float | None) -> float | None:
    """Returns a value that a curve can show; else None."""
    if value is None or value != value or abs(value) == float("inf"):
        return None
    return value
