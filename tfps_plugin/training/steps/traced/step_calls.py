"""Calls of a worker that make steps on what it reads."""

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


class MadeSteps(NamedTuple):
    """What a worker has done.

    Attributes:
        num_steps: How many steps ran; fewer than asked for where the input
            has ended. Those of a call that met the end in the midst of a round
            are none: nobody knows how many they were.
        outputs: What the last one returned, on the worker; None if none ran.
        counted: What they have counted, fetched; see `CountedSums`.
    """

    num_steps: int
    outputs: Any
    counted: Counted


class StepCalls:
    """Makes steps, several in each round of a worker's loop once that pays.

    Threading: `grow` is for the thread that runs `fit` alone; `make` is called
    by lanes, which see the one function or the other.
    """

    def __init__(self, functions: StepFunctions, element_spec: Any) -> None:
        """Begins with what earlier calls of the same functions came to.

        Args:
            functions: The model's step.
            element_spec: What one batch looks like.
        """
        self._functions = functions
        self._element_spec = element_spec
        self._function = functions.on_iterator(element_spec)
        # An earlier epoch may have found that they pay.
        self._rounds: Rounds | None = functions.known_rounds(element_spec)
        # None until a worker has said so. Whole rounds need input without end:
        # what one of them has taken, nobody could give back.
        self._is_infinite: bool | None = None
        self._may_grow = True

    def grow(self, steps_of_a_call: int) -> None:
        """Looks whether larger rounds pay, and prepares them if so.

        Args:
            steps_of_a_call: As many steps are made with each call.
        """
        if (
            self._may_grow
            and self._is_infinite
            and rounds.pays(self._functions.pace.steps_so_far, steps_of_a_call)
        ):
            self._may_grow = False
            self._rounds = self._functions.in_rounds(self._element_spec)

    def make(self, share: Share, num_steps: int) -> MadeSteps:
        """Has the worker that the calling lane drives make steps.

        Args:
            share: What it reads.
            num_steps: How many; fewer are made if the share ends before.
        """
        self._is_infinite = share.is_infinite
        try:
            results = self._call(share, num_steps)
        except tf.errors.OutOfRangeError:
            # Of a step itself, or of rounds, which take batches without a look
            # whether there are any.
            if not share.is_infinite or _has_more(share.iterator):
                raise
            return MadeSteps(0, None, {})
        # Asked for in any case: what repeats without end has an end where there
        # is nothing to repeat.
        done: int = 0
        outputs: Any = None
        counted: Counted = {}
        for result in results:
            made = int(result.num_steps)
            if made:
                done, outputs = done + made, result.outputs
                share.has_given = True
            counted = counted_sums.add(
                counted, counted_sums.fetch(result.counted)
            )
        return MadeSteps(done, outputs, counted)

    def _call(self, share: Share, num_steps: int) -> list[StepsOutput]:
        left, calls = num_steps, []
        looks_first = False
        if self._rounds is not None and share.is_infinite:
            left = num_steps % self._rounds.num_steps
            # A round counts its steps before it knows that it has batches.
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
                if looks_first and int(results[-1].num_steps) < number:
                    break
        return results


def _has_more(iterator: Any) -> bool:
    """Whether an iterator of a worker has another batch, which is taken."""
    return bool(iterator.get_next_as_optional().has_value())
