"""Calls are large enough to be cheap, and small enough to be shared."""

from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.training.steps.packing import choose_steps_per_closure


@given(st.integers(0, 10_000), st.integers(1, 100))
def test_every_lane_gets_work_in_every_epoch(
    num_steps: int, num_lanes: int
) -> None:
    chosen = choose_steps_per_closure(num_steps, num_lanes)
    assert 1 <= chosen <= 10
    assert chosen == 1 or chosen * num_lanes * 4 <= num_steps
