"""Calls of a worker that run steps on its input."""

import math
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin.inputs.split_reader import Share
from tfps_plugin.training.steps.metrics import counted_sums
from tfps_plugin.training.steps.metrics.counted_sums import Counted
from tfps_plugin.training.steps.traced import rounds
from tfps_plugin.training.steps.traced.step_functions import Rounds
from tfps_plugin.training.steps.traced.step_functions import StepFunctions
from tfps_plugin.training.steps.traced.step_loops import StepsOutput
from tfps_plugin.variables.chief import worker_fetches


class MadeSteps(NamedTuple):
    """Steps that a worker has run.

    Attributes:
        num_steps: Number of steps; fewer than requested if the input has
            ended. Zero for a call that met the end in the middle of a round,
            because their number is unknown.
        outputs: Result of the last step, on the worker; None if none ran.
        counted: Fetched results of `CountedSums.pack`.
        place: See `StepsOutput`; None also if no step ran.
        input_seconds: Seconds that the steps waited for input; None if nobody
            knows.
    """

    num_steps: int
    outputs: Any
    counted: Counted
    place: int | None = None
    input_seconds: float | None = None


class StepCalls:
    """Runs steps, several in each round of a worker's loop once that pays.

    Threading: only the thread that runs `fit` calls `grow`; lanes call `make`,
    and see either function.
    """

    def __init__(self, functions: StepFunctions, element_spec: Any) -> None:
        """Starts from the findings of earlier calls of the same functions."""
        self._functions = functions
        self._element_spec = element_spec
        self._function = functions.on_iterator(element_spec)
        # An earlier epoch may have found that rounds pay.
        self._rounds: Rounds | None = functions.known_rounds(element_spec)
        # None until a worker has told. Whole rounds need infinite input: the
        # batches of an incomplete round would be lost.
        self._is_infinite: bool | None = None
        self._may_grow = True

    def grow(self, steps_of_a_call: int) -> None:
        """Checks whether larger rounds pay, and prepares them if so.

        Args:
            steps_of_a_call: Number of steps of each call.
        """
        if (
            self._may_grow
            and self._is_infinite
            and rounds.pays(self._functions.pace.steps_so_far, steps_of_a_call)
        ):
            self._may_grow = False
            self._rounds = self._functions.in_rounds(self._element_spec)

    def make(self, share: Share, num_steps: int) -> MadeSteps:
        """Runs steps on the worker of the calling lane.

        Args:
            share: The input to read.
            num_steps: Number of steps; fewer run if the share ends before.
        """
        self._is_infinite = share.is_infinite
        try:
            results = self._call(share, num_steps)
        except tf.errors.OutOfRangeError:
            # From a step itself, or from rounds, which take batches without
            # checking for the end.
            if not share.is_infinite or _has_more(share.iterator):
                raise
            share.count(None)
            return MadeSteps(0, None, {})
        # Reads the number in any case: an infinite input ends if there is
        # nothing to repeat.
        done: int = 0
        outputs: Any = None
        counted: Counted = {}
        place: int | None = None
        waited = 0.0
        for result in results:
            made, seconds = result.fetch_progress()
            waited += seconds
            if made:
                done, outputs = done + made, result.outputs
                share.has_given = True
                if result.place is not None:
                    place = int(worker_fetches.array(result.place))
            counted = counted_sums.add(
                counted, counted_sums.fetch(result.counted)
            )
        share.count(done)
        return MadeSteps(
            done,
            outputs,
            counted,
            place,
            None if math.isnan(waited) else waited,
        )

    def _call(self, share: Share, num_steps: int) -> list[StepsOutput]:
        left, calls = num_steps, []
        looks_first = False
        if self._rounds is not None and share.is_infinite:
            left = num_steps % self._rounds.num_steps
            # A round counts its steps without checking for batches.
            looks_first = not share.has_given
            if looks_first and not left:
                left = min(num_steps, self._rounds.num_steps)
            calls.append((self._rounds.function, num_steps - left))
        calls.append((self._function, left))
        if looks_first:
            calls.reverse()
        results = []
        for function, number in calls:
            if number:
                results.append(
                    function(share.iterator, self._functions.number(number))
                )
                if looks_first and results[-1].fetch_progress()[0] < number:
                    break
        return results


def _has_more(iterator: Any) -> bool:
    """Takes a batch from a worker's iterator; returns whether there was one."""
    return bool(iterator.get_next_as_optional().has_value())
