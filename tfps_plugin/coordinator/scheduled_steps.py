"""Protocol of steps that several workers make together, in custom loops.

A floor above implements it; see `ParameterServerStrategy.scheduled_steps`.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import Protocol


class GroupCalls(Protocol):
    """Calls that all workers make together, one after another."""

    @property
    def is_idle(self) -> bool:
        """True if no call waits or runs."""

    def put(self, call: Callable[[], Any], step: Any, listener: Any) -> None:
        """Adds a call; waits while many wait already.

        Args:
            call: Makes the call on the worker of the calling thread.
            step: What `ScheduledSteps.step_of` has returned.
            listener: Told of the outcome, as that of a closure.
        """

    def wait_until_idle(self, timeout_seconds: float | None) -> bool:
        """Waits until no call waits or runs.

        Args:
            timeout_seconds: How long to wait at most; None: without limit.

        Returns:
            Whether there is none.
        """

    def cancel_waiting(self) -> int:
        """Cancels calls that wait; returns their number."""

    def stop(self) -> None:
        """Cancels calls that wait, and refuses others."""


class ScheduledSteps(Protocol):
    """Steps in functions that a program schedules itself."""

    def trace(self, function: Callable[[], Any], arguments: Any) -> Any:
        """Traces what `strategy.run` runs in a scheduled function.

        Args:
            function: What to run.
            arguments: Its arguments; they have the examples.

        Returns:
            What the function returns.

        Raises:
            NotAStepError: If it is no step, but assigns variables or reduces
                values: it has to be traced again, as a function of one worker.
        """

    def step_of(self, function: Any) -> Any:
        """Returns the step in a concrete function; None if it has none.

        Raises:
            UnsupportedError: If it applies gradients in any other way, or
                reduces values over workers without a step.
        """

    def for_workers(self, function: Any) -> Any:
        """Returns the concrete function that workers run in place of another.

        Args:
            function: A concrete function, as it was traced. One without a step
                is returned as it is.
        """

    def for_chief(self, function: Any) -> Sequence[Any]:
        """Returns the concrete functions that the chief runs beside a step.

        Args:
            function: A concrete function, as it was traced. There are none for
                one without a step.
        """

    def new_calls(self, coordinator: Any) -> GroupCalls:
        """Returns the calls of a coordinator."""
