from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.training.packing import StepCounter
from tfps_plugin.training.packing import choose_steps_per_closure


@given(st.integers(1, 10_000), st.integers(1, 100))
def test_every_lane_gets_work_in_every_epoch(
    steps_per_epoch: int, num_lanes: int
) -> None:
    chosen = choose_steps_per_closure(steps_per_epoch, num_lanes)
    assert 1 <= chosen <= 10
    assert chosen == 1 or chosen * num_lanes * 4 <= steps_per_epoch


@given(st.integers(1, 200), st.integers(1, 30), st.integers(1, 30))
def test_an_epoch_is_exactly_its_steps(
    steps_per_epoch: int, per_request: int, per_closure: int
) -> None:
    counter = StepCounter(steps_per_epoch, per_request, per_closure)
    for _ in range(2):
        counter.begin_epoch()
        handed_out = []
        # As Keras's loop does, which runs over the end of the epoch.
        for _ in range(0, steps_per_epoch, per_request):
            handed_out += counter.ask()
        assert all(size == per_closure for size in handed_out)
        rest = counter.flush()
        assert rest < per_closure
        assert sum(handed_out) + rest == steps_per_epoch


def test_what_was_asked_for_before_a_break_is_run() -> None:
    counter = StepCounter(100, 1, 10)
    handed_out = [size for _ in range(13) for size in counter.ask()]
    assert handed_out == [10]
    assert counter.flush() == 3
    assert counter.flush() == 0
