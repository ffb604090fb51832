import dataclasses
import json

from tfps_plugin.dashboard.history import History
from tfps_plugin.dashboard.history import point_of
from tfps_plugin.monitoring.state.testing import example_state


def test_a_point_has_what_the_curves_show() -> None:
    point = point_of(example_state())
    assert point == {
        "time": 1_700_000_100.0,
        "steps_per_second": 120.5,
        "examples_per_second": 61_696.0,
        "loss": 0.4321,
        "memory_bytes": {"ps 0": 12_000_000_000},
        "traffic_bytes_per_second": {"ps 0": 7e6},
    }


def test_a_loss_that_is_no_number_leaves_a_gap() -> None:
    state = example_state()
    for loss in (float("nan"), float("inf"), -float("inf")):
        job = dataclasses.replace(state.job, metrics={"loss": loss})
        point = point_of(dataclasses.replace(state, job=job))
        assert point["loss"] is None
        json.dumps(point, allow_nan=False)


def test_the_history_is_bounded() -> None:
    history = History()
    state = example_state()
    for second in range(5000):
        history.add(dataclasses.replace(state, time=float(second)))
    times = [point["time"] for point in history.points]
    assert times == list(range(1400, 5000))


def test_a_state_that_is_told_twice_is_one_point() -> None:
    history = History()
    for _ in range(2):
        history.add(example_state())
    assert len(history.points) == 1
