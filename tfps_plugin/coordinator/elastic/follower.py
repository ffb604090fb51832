"""Thread that adds and removes workers as the cluster resolver says."""

import logging
import threading
import weakref
from typing import Any

from tfps_plugin.coordinator.elastic import described_changes
from tfps_plugin.coordinator.elastic.described_changes import Changes

_logger = logging.getLogger("tfps_plugin")

INTERVAL_SECONDS = 5.0


class Follower:
    """Follows the answer of a cluster resolver, beside a coordinator.

    An answer counts when it was given twice in a row: a list that somebody is
    writing, or that lacks a machine which is just starting, does not.

    Threading: `start` and `stop` are called by any thread, once each. It has no
    lock; everything else is used by the thread itself only.
    """

    def __init__(self, interval_seconds: float | None = None) -> None:
        """Creates the thread; it runs from `start` to `stop`.

        Args:
            interval_seconds: Time between two questions; None: the usual one.
        """
        if interval_seconds is None:
            interval_seconds = INTERVAL_SECONDS
        self._interval_seconds = interval_seconds
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last: Changes | None = None
        # The latest problem that the log has told of.
        self._problem = ""

    def start(self, coordinator: Any) -> None:
        """Begins to follow.

        Args:
            coordinator: A `ClusterCoordinator`; it is not kept alive.
        """
        self._thread = threading.Thread(
            target=self._run,
            args=(weakref.ref(coordinator),),
            name="tfps-follower",
            daemon=True,
        )
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """Ends the thread.

        Args:
            timeout_seconds: How long to wait for its end.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def _run(self, reference: weakref.ref[Any]) -> None:
        while not self._stop.wait(self._interval_seconds):
            coordinator = reference()
            if coordinator is None or (
                coordinator.strategy.session.connection.is_over
            ):
                return
            try:
                self._follow(coordinator)
            except Exception as error:
                self._tell(f"{type(error).__name__}: {error}")
            del coordinator

    def _follow(self, coordinator: Any) -> None:
        session = coordinator.strategy.session
        described = session.described_now()
        if described is None:
            return  # the log says why
        known = session.cluster
        if len(described.ps_addresses) != len(known.ps_addresses):
            self._tell(
                f"there are {len(described.ps_addresses)} parameter servers "
                f"now; training goes on with the {len(known.ps_addresses)} "
                "that it began with"
            )
        changes = described_changes.find(
            described.worker_addresses,
            known.worker_addresses,
            session.addresses_now().worker_addresses,
            coordinator.worker_indices,
        )
        self._tell(changes.problem)
        is_settled, self._last = changes == self._last, changes
        if not is_settled:
            return
        for address in changes.added:
            coordinator.add_worker(address)
        for index in changes.removed:
            if self._stop.is_set():
                return
            coordinator.remove_worker(index)

    def _tell(self, problem: str) -> None:
        """Logs a problem, if it is news."""
        if problem and problem != self._problem:
            _logger.warning(
                "The workers are not changed as the cluster resolver says: %s.",
                problem,
            )
        if problem:
            self._problem = problem
