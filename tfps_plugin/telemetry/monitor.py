"""State of the job of one strategy: `tfps.cluster_state`."""

import threading
import time
import weakref
from typing import Any

from tfps_plugin.monitoring.state.cluster_state import ClusterState
from tfps_plugin.monitoring.state.event_log import EventLog
from tfps_plugin.telemetry.gathering import Gathering
from tfps_plugin.telemetry.state_endpoint import StateEndpoint

# Several viewers that ask at about the same time get the same state, unless
# something has happened. Gathering one takes some ten milliseconds.
_AGE_SECONDS = 0.9


class Monitor:
    """Knows the state of a strategy's job. The strategy has one.

    Nothing is gathered unless somebody asks.

    Threading: safe from any thread. Guarded by `_lock`: the latest state. It is
    held while one is gathered, which tasks delay by a second at most.
    """

    def __init__(self, strategy: Any) -> None:
        """Begins; gathers nothing yet.

        Args:
            strategy: The strategy; it is not kept alive.
        """
        self._strategy = weakref.ref(strategy)
        self.event_log = EventLog()
        self._gathering = Gathering(self.event_log)
        self._lock = threading.Lock()
        self._latest: ClusterState | None = None
        self._gathered_at = float("-inf")

    def state(self, *, age_seconds: float = _AGE_SECONDS) -> ClusterState:
        """Returns the state of the job.

        Args:
            age_seconds: How old it may be.

        Raises:
            ReferenceError: If the strategy is gone.
        """
        strategy = self._strategy()
        if strategy is None:
            raise ReferenceError("The strategy is gone, and with it its job.")
        with self._lock:
            # A loss shows at once.
            if (
                self._latest is None
                or self._latest.events != self.event_log.latest
                or time.monotonic() - self._gathered_at > age_seconds
            ):
                self._latest = self._gathering.gather(
                    strategy, strategy.coordinator
                )
                self._gathered_at = time.monotonic()
            return self._latest

    # The coordinator calls these, as it does with all background work.

    def start(self, coordinator: Any) -> None:
        """Listens to the events of a coordinator."""
        coordinator.events.subscribe(self.event_log.add)

    def stop(self, timeout_seconds: float) -> None:
        """Does nothing: a coordinator that ends publishes no more."""


def cluster_state(strategy: Any) -> ClusterState:
    """Returns what a job is and does now, as plain values.

    ```python
    state = tfps.cluster_state(strategy)
    for worker in state.workers:
        print(worker.name, worker.health, worker.steps_per_second)
    ```

    `tfps status`, `tfps top`, the dashboard, the Prometheus endpoint and
    `tfps.callbacks.ClusterMetrics` show the same values.

    Args:
        strategy: A `tfps.ParameterServerStrategy`.

    Returns:
        The state. Tasks are asked for it; those that do not answer within a
        second are "silent". Rates are of about the last ten seconds, and None
        at the first call.

    Raises:
        TypeError: If `strategy` is not a `tfps.ParameterServerStrategy`.

    Threading: safe from any thread. It waits for no step.
    """
    monitor = getattr(strategy, "monitor", None)
    if not isinstance(monitor, Monitor):
        raise TypeError(
            "Only a tfps.ParameterServerStrategy has a state. Received: "
            f"strategy={strategy!r}"
        )
    return monitor.state(age_seconds=0.0)


def install(strategy: Any) -> None:
    """Lets a strategy's job be watched.

    Args:
        strategy: The strategy, which has just been made.
    """
    monitor = Monitor(strategy)
    strategy.monitor = monitor
    strategy.background_work.append(monitor)
    strategy.session.connection.part(StateEndpoint).show(
        strategy, monitor.state
    )
