"""Watch for workers that are slower than the others."""

import logging
import threading
import weakref
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Hashable
from typing import Any
from typing import NamedTuple

from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.coordinator.closures.arguments import Call
from tfps_plugin.coordinator.stragglers import diagnosis
from tfps_plugin.coordinator.stragglers.comparison import SlowWorker
from tfps_plugin.coordinator.stragglers.diagnosis import Diagnosis
from tfps_plugin.coordinator.stragglers.diagnosis import Probes
from tfps_plugin.coordinator.stragglers.windows import Observation
from tfps_plugin.coordinator.stragglers.worker_rates import WorkerRates
from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.counters import Counters

_logger = logging.getLogger("tfps_plugin.coordinator")

_INTERVAL_SECONDS = 1.0

# Returns the probes of given workers and of some others; called on a thread of
# its own.
Measure = Callable[[Collection[int]], Probes]


class _Report(NamedTuple):
    """The latest report of a worker: its generation, and what it was slow at.

    The work is the one at which the worker was found slow last.
    """

    generation: int
    kind: Hashable


class SlowWorkerWatch:
    """Reports each slow worker once, with what it is slow at.

    Lanes tell what their calls took. Once in a second, one of them compares the
    workers, which takes microseconds. Only when a worker turns out to be slow,
    a thread begins: it measures the network, publishes the event, and ends.

    Guarantees: a worker is reported again only if it was about as fast as the
    others in between, at the same kind of work, or was lost and is back. So one
    that is slow only in training is not reported after each evaluation.
    Threading: safe from any thread. Guarded by `_lock`: everything but the
    rates. Nothing is called while holding it.

    Attributes:
        rates: The rates of the workers.
    """

    def __init__(
        self,
        fraction: float | None,
        counters: Counters,
        event_board: events.Events,
        *,
        present: Callable[[], Collection[int]],
        address: Callable[[int], str],
        measure: Measure,
    ) -> None:
        """Begins without observations.

        Args:
            fraction: The fraction of the median rate of the others below which
                a worker is slow; None: nothing is reported.
            counters: Counts reports.
            event_board: Publishes them.
            present: Returns the indices of the workers that take part.
            address: Returns the address of a worker.
            measure: Measures the network of given workers, and of some others
                to compare them with.
        """
        self._fraction = fraction
        self._counters = counters
        self._events = event_board
        self._present = present
        self._address = address
        self._measure = measure
        self.rates = WorkerRates()
        self._lock = threading.Lock()
        self._compared_at: dict[Hashable, float] = {}
        # Of the reported workers, by index.
        self._reported: dict[int, _Report] = {}
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    def observe(
        self,
        kind: Hashable,
        work: str,
        context: DispatchContext,
        made: Observation,
        now: float,
        *,
        together: bool = False,
    ) -> None:
        """Records the end of a call; called by lanes.

        Args:
            kind: Rates are compared among calls of one kind.
            work: A name of the kind, for people.
            context: The worker and the lane.
            made: The call.
            now: The time, in seconds.
            together: Whether workers wait for each other in such calls.
        """
        self.rates.observe(
            kind,
            work,
            (context.worker_index, context.generation),
            context.lane_index,
            made,
            together=together,
        )
        with self._lock:
            since = self._compared_at.get(kind)
            if since is not None and now < since + _INTERVAL_SECONDS:
                return
            self._compared_at = {
                each: at
                for each, at in self._compared_at.items()
                if now < at + _INTERVAL_SECONDS
            }
            self._compared_at[kind] = now
        self._compare(kind)

    def made(
        self,
        call: Callable[[], Any],
        context: DispatchContext,
        begun_at: float,
        ended_at: float,
    ) -> None:
        """Records the end of a closure, if it is a step by itself.

        That is a `tf.function` that the program has scheduled. Python callables
        may do anything; those of `fit` tell of their steps themselves.

        Args:
            call: What was called.
            context: The worker and the lane.
            begun_at: When it began, in seconds.
            ended_at: When it ended.
        """
        if isinstance(call, Call) and call.concrete is not None:
            self._counters.increment("functions_done")
            self.observe(
                # It does not keep the function alive, and differs from that of
                # a later one, which may have the same address.
                weakref.ref(call.concrete),
                call.name,
                context,
                Observation(1, ended_at - begun_at),
                ended_at,
            )

    def stop(self, timeout_seconds: float) -> None:
        """Reports nothing more, and waits for the thread, if there is one.

        Args:
            timeout_seconds: How long to wait for its end.
        """
        with self._lock:
            self._is_stopped = True
            thread = self._thread
        if thread is not None:
            thread.join(timeout_seconds)

    def _compare(self, kind: Hashable) -> None:
        # Relative speeds are wanted also if nothing is reported.
        fraction = 0.5 if self._fraction is None else self._fraction
        found = self.rates.compare(kind, self._present(), fraction)
        if self._fraction is None:
            return
        with self._lock:
            for worker_index in found.even:
                report = self._reported.get(worker_index)
                if report is not None and report.kind == kind:
                    del self._reported[worker_index]
            news = []
            for slow in found.slow:
                report = self._reported.get(slow.worker_index)
                if report is None or report.generation != slow.generation:
                    news.append(slow)
                else:
                    # It is slow at this work now; the other may be over.
                    self._reported[slow.worker_index] = report._replace(
                        kind=kind
                    )
            # Others are reported when the thread has ended.
            if not news or self._thread is not None or self._is_stopped:
                return
            # A daemon, because the program may end meanwhile.
            thread = threading.Thread(
                target=self._report,
                args=(news, self._fraction),
                name="tfps-slow-workers",
                daemon=True,
            )
            try:
                # It waits for the lock before it ends.
                thread.start()
            except RuntimeError:
                # There are too many. It is tried again in a second.
                _logger.debug("A slow worker is not reported.", exc_info=True)
                return
            self._thread = thread
            for slow in news:
                self._reported[slow.worker_index] = _Report(
                    slow.generation, kind
                )

    def _report(self, found: list[SlowWorker], fraction: float) -> None:
        """Finds what workers are slow at, and publishes it."""
        try:
            probes: Probes | None = None
            for slow in found:
                known = diagnosis.of_input(slow)
                if known is None:
                    if probes is None:
                        probes = self._measure(
                            [each.worker_index for each in found]
                        )
                    known = diagnosis.of_probes(slow, probes, fraction)
                self._publish(slow, known)
        except Exception:
            # Training does not depend on it.
            _logger.exception("A slow worker could not be reported.")
        finally:
            with self._lock:
                self._thread = None

    def _publish(self, slow: SlowWorker, known: Diagnosis) -> None:
        with self._lock:
            if self._is_stopped:
                return
        self._counters.increment("workers_slow")
        self._events.publish(
            events.WorkerSlow(
                slow.worker_index,
                self._address(slow.worker_index),
                slow.steps_per_second,
                slow.median_steps_per_second,
                known.slow_at,
                known.detail,
                slow.is_waited_for,
            )
        )
