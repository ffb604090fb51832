"""Tests of the size of rounds."""

from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.training.steps.traced import rounds


@given(st.integers(0, 100_000))
def test_a_round_stays_small_enough_to_be_prepared(num_operations: int) -> None:
    num_steps = rounds.steps_of_a_round(num_operations)
    assert 1 <= num_steps <= rounds.MOST_STEPS
    assert num_steps == 1 or num_steps * num_operations <= 6_000


def test_short_training_and_long_steps_have_none() -> None:
    assert rounds.pays(steps_so_far=500, steps_of_a_call=20)
    assert not rounds.pays(steps_so_far=499, steps_of_a_call=20)
    assert not rounds.pays(steps_so_far=5000, steps_of_a_call=10)
