"""Tests that steps run in rounds that pay."""

from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.inputs.split_reader import Share
from tfps_plugin.training.steps.traced.step_calls import StepCalls
from tfps_plugin.training.steps.traced.step_functions import Rounds
from tfps_plugin.training.steps.traced.step_loops import StepsOutput
from tfps_plugin.training.steps.tuning.packing import Pace


class _Functions:
    """Records the function and the number of steps of each call."""

    def __init__(self) -> None:
        self.pace = Pace(num_lanes=1)
        self.made: list[tuple[str, int]] = []
        self._rounds: Rounds | None = None
        # Number of batches left; None: infinitely many.
        self.left: int | None = None

    def on_iterator(self, element_spec: Any) -> Any:
        return self._function("single")

    def in_rounds(self, element_spec: Any) -> Rounds:
        self._rounds = Rounds(4, self._function("rounds"))
        return self._rounds

    def known_rounds(self, element_spec: Any) -> Rounds | None:
        return self._rounds

    def number(self, value: int) -> int:
        return value

    def _function(self, name: str) -> Any:
        def make(iterator: Any, num_steps: int) -> StepsOutput:
            if self.left is not None:
                if name == "rounds" and self.left < num_steps:
                    self.left = 0
                    raise tf.errors.OutOfRangeError(None, None, "the end")
                num_steps = min(num_steps, self.left)
                self.left -= num_steps
            self.made.append((name, num_steps))
            return StepsOutput(
                tf.constant([num_steps, 0.25], tf.float64),
                {},
                {"sum": [tf.constant([num_steps])]},
            )

        return make


def _share(
    *, is_infinite: bool, has_more: bool = True, has_given: bool = True
) -> Any:
    return Share(
        split=0,
        worker_index=0,
        generation=0,
        iterator=iter(tf.data.Dataset.range(int(has_more))),
        is_infinite=is_infinite,
        has_given=has_given,
    )


def _grown(*, is_infinite: bool) -> tuple[_Functions, StepCalls]:
    functions: Any = _Functions()
    calls = StepCalls(functions, None)
    calls.make(_share(is_infinite=is_infinite), 20)
    functions.pace.observe(1000, 1.0)
    calls.grow(20)
    functions.made.clear()
    return functions, calls


def test_what_makes_no_whole_round_is_made_singly_and_counted() -> None:
    functions, calls = _grown(is_infinite=True)
    made = calls.make(_share(is_infinite=True), 50)
    assert functions.made == [("rounds", 48), ("single", 2)]
    assert made.num_steps == 50
    assert made.input_seconds == 0.5
    assert [int(part[0]) for part in made.counted["sum"]] == [50]


def test_an_epoch_begins_with_the_rounds_of_the_one_before() -> None:
    functions, _ = _grown(is_infinite=True)
    next_epoch = StepCalls(functions, None)  # type: ignore[arg-type]
    next_epoch.make(_share(is_infinite=True), 8)
    assert functions.made == [("rounds", 8)]


@pytest.mark.parametrize(
    ("num_steps", "made"),
    [
        (50, [("single", 2), ("rounds", 48)]),
        (48, [("single", 4), ("rounds", 44)]),
        (4, [("single", 4)]),
        (3, [("single", 3)]),
    ],
)
def test_rounds_come_after_the_first_batch(
    num_steps: int, made: list[tuple[str, int]]
) -> None:
    functions, calls = _grown(is_infinite=True)
    share = _share(is_infinite=True, has_given=False)
    assert calls.make(share, num_steps).num_steps == num_steps
    assert functions.made == made
    functions.made.clear()
    calls.make(share, 48)
    assert functions.made == [("rounds", 48)]


@pytest.mark.parametrize("batches", [0, 1])
def test_no_round_begins_on_input_that_gives_too_little(batches: int) -> None:
    functions, calls = _grown(is_infinite=True)
    functions.left = batches
    share = _share(is_infinite=True, has_more=False, has_given=False)
    assert calls.make(share, 50).num_steps == batches
    assert functions.made == [("single", batches)]


def test_input_that_ends_is_read_singly() -> None:
    functions, calls = _grown(is_infinite=False)
    calls.make(_share(is_infinite=False), 8)
    # Even if input of the same type was infinite before.
    functions.in_rounds(None)
    again = StepCalls(functions, None)  # type: ignore[arg-type]
    again.make(_share(is_infinite=False), 8)
    assert functions.made == [("single", 8), ("single", 8)]


def test_what_has_nothing_to_repeat_ends() -> None:
    functions, calls = _grown(is_infinite=True)
    ended = _share(is_infinite=True, has_more=False)
    functions.left = 3
    assert calls.make(ended, 2).num_steps == 2
    assert calls.make(ended, 2).num_steps == 1
    assert calls.make(ended, 2).num_steps == 0
    # In the middle of a round.
    functions.left = 3
    made = calls.make(ended, 8)
    assert made.num_steps == 0
    assert not made.counted


def test_a_step_that_is_out_of_range_itself_is_an_error() -> None:
    functions, calls = _grown(is_infinite=True)
    functions.left = 3
    with pytest.raises(tf.errors.OutOfRangeError, match="the end"):
        calls.make(_share(is_infinite=True), 8)
