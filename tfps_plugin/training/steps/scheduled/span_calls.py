"""The calls of one span, as each member makes them."""

from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin.training.steps.scheduled import numbered_functions
from tfps_plugin.training.steps.scheduled.waiting_call import WaitingCall
from tfps_plugin.training.synchronous.backup.late_gradients import LateGradients


class SpanCalls:
    """Makes calls, one for each step of a span, and keeps their results.

    With backup workers, a member that is late leaves steps out. Its call tells
    which step it was: the result is one of that step, and the next call is
    that of the step after it. Calls of a span then have the same arguments.

    Threading: each member's thread calls `make`; all else is used when these
    have ended.

    Attributes:
        ended: Why the input of a member has ended, by worker.
    """

    def __init__(
        self, calls: Sequence[WaitingCall], late: LateGradients
    ) -> None:
        """Prepares a span.

        Args:
            calls: The call of each step.
            late: Counts the steps that members compute.
        """
        self.ended: dict[int, tf.errors.OutOfRangeError] = {}
        self._calls = calls
        self._late = late

    def make(self, worker: int, num_steps: int) -> bool:
        """Makes the calls of a member, on its thread.

        Args:
            worker: Index of the worker.
            num_steps: Number of steps of the span.

        Returns:
            Whether the member goes on to the end of the span.
        """
        place = 0
        while place < num_steps:
            try:
                place = 1 + self._make_one(worker, place)
            except tf.errors.OutOfRangeError as error:
                self.ended[worker] = error
                return False
        return True

    def _make_one(self, worker: int, place: int) -> int:
        """Makes a call; returns the number of the step that it was."""
        returned = self._calls[place].call()
        if not self._late.num_backup:
            self._calls[place].results[worker] = returned
            return place
        outputs, number = numbered_functions.result_of(returned)
        self._late.note(worker, 1)
        if number < len(self._calls):
            self._calls[number].results[worker] = outputs
        # Otherwise it was late for the last step, and this one was in vain.
        return number
