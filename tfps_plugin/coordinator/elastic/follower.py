"""Thread that adds and removes tasks as the cluster resolver says."""

import logging
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from tfps_plugin import errors
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator.elastic import described_changes
from tfps_plugin.coordinator.elastic.described_changes import Changes

_logger = logging.getLogger("tfps_plugin.coordinator")

INTERVAL_SECONDS = 5.0
_PROBE_TIMEOUT_SECONDS = 2.0
_NAMES = {WORKER: "workers", PARAMETER_SERVER: "parameter servers"}
_TASK = "/task:"


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
        # The latest changes to make: of workers, and of parameter servers.
        self._last: tuple[Changes, Changes] | None = None
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
        described = coordinator.strategy.session.described_now()
        if described is None:
            self._last = None
            return  # the log says why
        of_workers = self._changes(
            coordinator, described, WORKER, coordinator.worker_indices
        )
        of_ps = self._changes(
            coordinator, described, PARAMETER_SERVER, coordinator.ps_indices
        )
        changes = of_workers, of_ps
        is_settled, self._last = changes == self._last, changes
        problems = []
        if is_settled:
            problems = [of_workers.problem, of_ps.problem]
            for change in (
                lambda: self._add_workers(coordinator, of_workers),
                lambda: self._remove_workers(coordinator, of_workers),
                # Variables move more slowly than workers come and go.
                lambda: self._add_ps(coordinator, of_ps, described),
                lambda: self._remove_ps(coordinator, of_ps, described),
            ):
                # One that fails does not keep the others from being made.
                try:
                    change()
                except Exception as error:
                    problems.append(f"{type(error).__name__}: {error}")
        self._tell("; ".join(filter(None, problems)))

    def _changes(
        self,
        coordinator: Any,
        described: ClusterSpec,
        job: str,
        indices: tuple[int, ...],
    ) -> Changes:
        """Returns the changes of a job; asks processes that only know them."""
        session = coordinator.strategy.session

        def find(told: Mapping[str, int]) -> Changes:
            return described_changes.find(
                described.addresses(job),
                session.cluster.addresses(job),
                session.addresses_now().addresses(job),
                indices,
                _NAMES[job],
                told,
            )

        changes = find({})
        if not changes.unknown:
            return changes
        names = session.names_at(changes.unknown, _PROBE_TIMEOUT_SECONDS)
        return find(
            {
                address: int(index)
                for address, name in names.items()
                for of_job, _, index in [name.rpartition(_TASK)]
                if of_job == f"/job:{job}/replica:0"
            }
        )

    def _add_workers(self, coordinator: Any, changes: Changes) -> None:
        for address in changes.added:
            coordinator.add_worker(address)

    def _remove_workers(self, coordinator: Any, changes: Changes) -> None:
        for index in changes.removed:
            if self._stop.is_set():
                return
            coordinator.remove_worker(index)

    def _add_ps(
        self, coordinator: Any, changes: Changes, described: ClusterSpec
    ) -> None:
        """Adds parameter servers, in order, as far as they answer.

        To wait for one that is starting would hold back all other changes.
        """
        session = coordinator.strategy.session
        for address in changes.added:
            if not self._is_still(coordinator, described):
                return
            known = session.cluster.ps_addresses
            index = (*known, address).index(address)
            task = Task(PARAMETER_SERVER, index, address)
            try:
                session.probe(task, _PROBE_TIMEOUT_SECONDS)
            except errors.TaskUnreachableError:
                return
            coordinator.add_ps(address)

    def _remove_ps(
        self, coordinator: Any, changes: Changes, described: ClusterSpec
    ) -> None:
        for index in changes.removed:
            if not self._is_still(coordinator, described):
                return
            coordinator.remove_ps(index)

    def _is_still(self, coordinator: Any, described: ClusterSpec) -> bool:
        """Returns whether the described cluster is still the same one.

        Changes of parameter servers take time, in which others may be wanted.
        """
        return not self._stop.is_set() and (
            coordinator.strategy.session.described_now() == described
        )

    def _tell(self, problem: str) -> None:
        """Logs a problem, if it is news."""
        if problem and problem != self._problem:
            _logger.warning(
                "The cluster is not changed as its resolver says: %s.",
                problem.removesuffix("."),
            )
        if problem:
            self._problem = problem
