"""The spans of a connection, one after another, and who takes part in them."""

import functools
import logging
import math
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.coordinator import error_text
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.elastic.uses import Use
from tfps_plugin.coordinator.lanes import first_calls
from tfps_plugin.training.synchronous import reach
from tfps_plugin.training.synchronous.exclusions import Exclusions
from tfps_plugin.training.synchronous.span import Span
from tfps_plugin.variables.chief import chief_reads

_logger = logging.getLogger("tfps_plugin.training")

# Interval at which a wait returns to Python by itself.
_WAKE_UP_SECONDS = 1.0


class Spans:
    """Spans of one connection; one of its parts.

    Steps of different functions may update the same variables, and those of a
    `fit` that was interrupted may still run when the next one begins.

    Threading: the threads that run `fit`.
    Guarded by `_lock`: the latest span. Only the thread that begins spans uses
    the workers that sit out, and the probe of parameter servers.
    """

    def __init__(self) -> None:
        """Begins without a span."""
        self._lock = threading.Lock()
        self._latest: Span | None = None
        self._exclusions = Exclusions()
        # Number of recovered ps when workers were known to reach all.
        self._num_recovered = 0
        self._probe: Callable[[], tf.Tensor] | None = None
        # Devices of the parameter servers that it asks.
        self._probed: tuple[str, ...] = ()
        # Workers of which the log says that they do not take part yet.
        self._told_of: set[int] = set()

    def wait_for_members(
        self,
        coordinator: ClusterCoordinator,
        capacity: int,
        pinned: Collection[int] = (),
    ) -> tuple[list[int], Use]:
        """Waits until a worker is present; returns those that take part.

        Args:
            coordinator: Knows the workers.
            capacity: Number of workers that the step was traced for. Others,
                which were added since, take part in steps that are traced
                after that.
            pinned: Indices of workers on which each step places operations.
                All of them have to be present.

        Returns:
            The workers, and their use, which keeps them from leaving: to be
            released when the span has ended.

        Raises:
            WorkerLostError: If there is none for too long.
            UnsupportedError: If the step was traced for none of those that are
                left.
        """
        while True:
            use = coordinator.use_present()
            present = [each for each in use.workers if each < capacity]
            self._tell_of_the_others(use.workers, capacity)
            if present and set(pinned) <= set(use.workers):
                self._wait_until_reached(coordinator, present)
                return self.members(present), use
            use.release()
            if use.workers and not present:
                raise errors.UnsupportedError(
                    "A step that workers make together was traced before the "
                    "workers were added that are left. Expected one of the "
                    f"workers 0 to {capacity - 1}. Received: workers "
                    f"{use.workers}. Begin another epoch, or schedule a new "
                    "tf.function."
                )
            # Any worker may run it: then there is one.
            coordinator.schedule(
                functools.partial(first_calls.require, tuple(pinned))
            ).get()

    def _tell_of_the_others(
        self, workers: Sequence[int], capacity: int
    ) -> None:
        others = [each for each in workers if each >= capacity]
        if others and not self._told_of.issuperset(others):
            self._told_of.update(others)
            _logger.warning(
                "The workers %s do not take part in this step, which was "
                "traced for %d: fit() traces it again when the next epoch "
                "begins. In a loop of your own, schedule a new tf.function.",
                others,
                capacity,
            )

    def _wait_until_reached(
        self, coordinator: ClusterCoordinator, present: Sequence[int]
    ) -> None:
        """Waits, after the loss of a ps, until workers reach all again."""
        num_recovered = coordinator.counters.value("ps_recovered")
        if num_recovered != self._num_recovered:
            self._num_recovered = num_recovered
            devices = coordinator.strategy.ps_devices
            if self._probe is None or self._probed != devices:
                self._probed = devices
                self._probe = reach.new_probe(devices)
            reach.wait_until_reached(coordinator, present, self._probe)

    def members(self, present: Sequence[int]) -> list[int]:
        """Returns the workers that take part in the next span.

        Args:
            present: Indices of the workers that answer.
        """
        return self._exclusions.members(present)

    def exclude_failed(
        self, span: Span, absent: Collection[int], *, has_recovered: bool
    ) -> None:
        """Makes workers sit out that have failed although they answer.

        Args:
            span: A span that has ended.
            absent: Indices of the workers that do not answer.
            has_recovered: Whether a ps was lost and is back. Then it was not
                the workers that failed.
        """
        failed = {
            worker: error
            for worker, error in span.member_errors.items()
            if worker not in absent and chief_reads.is_about_the_cluster(error)
        }
        if not failed or span.error is not None or has_recovered:
            return
        seconds = self._exclusions.exclude(failed, span.seconds)
        if not seconds:
            return
        for worker, error in failed.items():
            _logger.warning(
                "Worker %d sits out for %.0f s: its call has failed, and held "
                "up the others for up to %.0f s. Check "
                "that it reaches all parameter servers. Received: %s: %s",
                worker,
                seconds,
                span.seconds,
                type(error).__name__,
                error_text.shortened(str(error)),
            )

    def begin(self, make: Callable[[], Span]) -> Span:
        """Begins a span, once the one before has ended.

        Args:
            make: Makes the span; does not start it.
        """
        with self._lock:
            self._wait(None)
            span = make()
            # An interrupt may come at any time. Who waits has to know it.
            self._latest = span
            span.start()
            return span

    def finish(self, timeout_seconds: float | None) -> bool:
        """Waits until no span runs; a span may end early.

        Args:
            timeout_seconds: How long to wait at most; None: until it has
                ended, by deadlines of its own.

        Returns:
            Whether none runs.
        """
        with self._lock:
            if self._latest is not None:
                self._latest.hurry()
            return self._wait(timeout_seconds)

    def _wait(self, timeout_seconds: float | None) -> bool:
        deadline = time.monotonic() + (
            math.inf if timeout_seconds is None else timeout_seconds
        )
        while self._latest is not None:
            left = deadline - time.monotonic()
            if self._latest.wait(min(_WAKE_UP_SECONDS, max(0.0, left))):
                self._latest = None
            elif left <= 0:
                return False
        return True
