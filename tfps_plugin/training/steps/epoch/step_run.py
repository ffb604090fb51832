"""The steps of one epoch, as closures of the workers."""

import abc
import logging
import math
import numbers
import threading
import weakref
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.coordinator import error_notes
from tfps_plugin.coordinator.closures.remote_value import RemoteValue
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.stragglers.windows import Observation
from tfps_plugin.training.local import lengths
from tfps_plugin.training.steps.epoch.step_account import StepAccount
from tfps_plugin.training.steps.metrics.counted_sums import Counted
from tfps_plugin.training.steps.metrics.progress_logs import ProgressLogs
from tfps_plugin.training.steps.traced.step_functions import StepFunctions

_logger = logging.getLogger("tfps_plugin.training")

# Interval at which the waiting thread of `fit` wakes up by itself.
_WAKE_UP_SECONDS = 1.0
# Each lane runs one closure, and another waits for it.
_CLOSURES_IN_FLIGHT_PER_LANE = 2


class StepRun(abc.ABC):
    """Runs the steps that Keras requests on the workers.

    Keras requests a step and continues at once, as long as few enough are in
    flight. Several steps make one closure.

    Threading: only the thread that runs `fit` uses it, except for methods
    that closures call, which say so. Guarded by `_again_lock`: the number of
    restarted steps.
    """

    # Whether calls are measured to find the fastest number at a time.
    tries_calls_in_flight = False

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        functions: StepFunctions,
        progress: ProgressLogs,
    ) -> None:
        """Begins an epoch; requests nothing."""
        self._coordinator = coordinator
        self._functions = functions
        self._progress = progress
        self._pace = functions.pace
        self._calls_in_flight = functions.calls_in_flight
        functions.workers_changed()
        self._calls_in_flight.begin_epoch()
        functions.loss_reports.begin_epoch()
        if self.tries_calls_in_flight or self._calls_in_flight.is_kept:
            coordinator.limit_in_flight(self._calls_in_flight.number)
        self._account = StepAccount()
        # Subclasses may have asked for functions already.
        self._layout_version = functions.traced_for_layout
        self._fell_short = False
        self._again_lock = threading.Lock()
        self._num_again = 0
        # Whether nothing was started since the last sync.
        self._is_synced = True
        self._is_closed = False
        # Validation in `fit` is no progress of its epoch.
        self._is_watched = functions.work == coordinator.strategy.progress.work
        if self._is_watched:
            coordinator.strategy.progress.watch(
                lambda: self.done, progress.logs
            )
        # It does not keep the model alive, and differs from that of a later
        # one, which may have the same address.
        self._kind = weakref.ref(functions)

    @property
    def fell_short(self) -> bool:
        """True if the input had fewer steps than requested; after `sync`."""
        return self._fell_short

    @property
    def asked(self) -> int:
        """Number of requested steps."""
        return self._account.asked

    @property
    def done(self) -> int:
        """Number of completed steps."""
        return self._account.done

    def reach_safe_point(self) -> None:
        """Lets variables move to other parameter servers, between two steps.

        Raises:
            BaseException: The error that an earlier step raised.
        """
        safe_points = self._coordinator.safe_points
        if safe_points.is_wanted:
            self.sync()
        safe_points.reach_between_steps()
        if self._layout_version != self._functions.layout_version:
            # Perhaps since a callback, which has waited for all steps.
            self._layout_version = self._functions.layout_version
            self._trace_again()

    @abc.abstractmethod
    def _trace_again(self) -> None:
        """Traces functions again: those that there are cannot be called."""

    @abc.abstractmethod
    def request(self, num_steps: int) -> None:
        """Requests more steps; waits while too many are in flight.

        Raises:
            StopIteration: If there is no input for even one of them.
            BaseException: The error that an earlier step raised.
        """

    def sync(self) -> None:
        """Waits for the steps in flight; cheap if there are none.

        Raises:
            BaseException: The error that a step raised.
        """
        if self._is_synced:
            return
        self._settle()
        self._join()
        self._is_synced = True
        self._calls_in_flight.went_idle()
        self._functions.commit(self._take_counted())
        self._progress.finish()

    def finish(self) -> None:
        """Ends the epoch: like `sync`; also tells of stale and restarted steps.

        Raises:
            BaseException: The error that a step raised.
        """
        self.sync()
        self._functions.collect()
        if self._is_watched:
            self._coordinator.strategy.progress.end_steps()
        self._functions.report_staleness()
        self._coordinator.limit_in_flight(
            self._coordinator.in_flight_limits.at_first
        )
        if self._num_again:
            _logger.warning(
                "%d steps of this epoch were begun a second time, because "
                "their function did not come to its end on a worker; as many "
                "at most of its %d steps were applied twice.",
                self._num_again,
                self.done,
            )

    @abc.abstractmethod
    def _settle(self) -> None:
        """Lets closures end as soon as they have done their work."""

    def close(self) -> None:
        """Keeps closures from starting more steps, however the epoch ends."""
        self._is_closed = True
        self._coordinator.limit_in_flight(
            self._coordinator.in_flight_limits.at_first
        )

    @abc.abstractmethod
    def _take_counted(self) -> Counted:
        """Returns the sum of the calls' counts since the last time."""

    def _begins_again(self, num_steps: int) -> None:
        """Counts steps that an earlier run of a closure may have applied."""
        with self._again_lock:
            self._num_again += num_steps
        self._coordinator.counters.increment("steps_again", num_steps)

    def _rate(
        self,
        num_steps: int,
        begun_at: float,
        ended_at: float,
        input_seconds: float | None,
        *,
        together: bool = False,
    ) -> None:
        """Notes what a call took on its worker, for the rates of workers.

        Args:
            num_steps: How many steps it made.
            begun_at: When it began, in seconds.
            ended_at: When it ended.
            input_seconds: How long its steps waited for input; None: unknown.
            together: Whether workers wait for each other in such calls.
        """
        self._coordinator.observe_steps(
            self._kind,
            self._functions.work,
            Observation(num_steps, ended_at - begun_at, input_seconds),
            ended_at,
            together=together,
        )

    def _observe(
        self, num_steps: int, most: int, ended_at: float, reported: Any
    ) -> None:
        """Notes that a call has ended, for how many run at a time.

        Args:
            num_steps: How many steps it made.
            most: How many such a call makes; near the end of an epoch it has
                fewer.
            ended_at: When, in seconds.
            reported: What its last step returned; None: nobody knows.
        """
        lane = dispatch_context.required().lane_index
        calls = self._calls_in_flight
        if calls.watches_loss:
            loss = self._loss_since_last(lane, reported)
            calls.observe_loss(num_steps, lane, loss, ended_at)
        if self._pace.is_known and 2 * num_steps > most:
            calls.observe(num_steps, lane, ended_at)
        if not self._is_closed:
            self._coordinator.limit_in_flight(calls.number)

    def _loss_since_last(self, lane: int, reported: Any) -> float | None:
        """Returns the mean loss since the lane's last report; None: unknown."""
        try:
            loss = loss_of(reported)
            if loss is None:
                return None
            return self._functions.loss_reports.since_last(lane, loss)
        # Training does not depend on it. If the worker is lost, its next call
        # fails and reports that.
        except Exception:
            _logger.debug(
                "The loss of a call is not known: it could not be read.",
                exc_info=True,
            )
            return None

    def _schedule(self, call: Callable[[], None]) -> RemoteValue:
        value = self._coordinator.schedule(call)
        value.on_ended(self._account.wake)
        return value

    def _join(self) -> None:
        """Waits for the steps in flight; adds their numbers to an error."""
        first, last = self.done + 1, self.asked
        try:
            self._coordinator.join()
        except Exception as error:
            error_notes.add_once(
                error,
                f"It was one of the steps {first} to {last} of this epoch, "
                "which were in flight together."
                if first < last
                else f"It was step {last} of this epoch.",
            )
            raise

    def _wait_until(
        self,
        predicate: Callable[[], bool],
        pump: Callable[[], None] = lambda: None,
    ) -> None:
        """Waits until a condition holds or a step has failed.

        Args:
            predicate: The condition, checked after every change of the
                account.
            pump: Called before each check.

        Raises:
            BaseException: The error that a step raised.
        """
        while True:
            num_changes = self._account.num_changes
            if self._coordinator.has_error:
                # Closures that wait for input would delay the end.
                self.close()
                self._join()
            pump()
            if predicate():
                return
            self._account.wait_for_change(num_changes, _WAKE_UP_SECONDS)

    def _whole_rounds(self, num_steps: int) -> int:
        """Returns the steps of a call that makes whole rounds, no fewer."""
        return lengths.at_least(num_steps, self._functions.local_steps)

    @property
    def _most_closures_in_flight(self) -> int:
        return _CLOSURES_IN_FLIGHT_PER_LANE * self._coordinator.num_lanes


def loss_of(reported: Any) -> float | None:
    """Returns the loss in the result of a step.

    Args:
        reported: Logs as arrays, or any other result of a user's step.

    Returns:
        The number named "loss"; None if there is none, or it is not finite.
    """
    loss = reported.get("loss") if isinstance(reported, Mapping) else None
    if not isinstance(loss, np.ndarray | np.generic | numbers.Real):
        return None
    array = np.asarray(loss)
    # Includes bfloat16 and other floats that only TensorFlow has.
    is_real = array.dtype.kind in "iuf" or array.dtype.name.startswith(
        ("bfloat", "float")
    )
    if array.size != 1 or not is_real:
        return None
    number = float(array.reshape(()))
    return number if math.isfinite(number) else None
