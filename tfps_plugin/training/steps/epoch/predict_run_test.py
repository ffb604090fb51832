"""Tests of predictions whose states pass from batch to batch."""

import itertools
import types
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.coordinator.elastic.safe_points import SafePoints
from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.training.steps.epoch.predict_run import PredictInput
from tfps_plugin.training.steps.traced.predict_functions import PredictFunction


class _Value:
    """A result that becomes ready when a caller waits for it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.is_done = False

    def is_ready(self) -> bool:
        return self.is_done


class _Coordinator:
    num_lanes = 4

    def __init__(self) -> None:
        self.values: list[_Value] = []
        self.safe_points = SafePoints(lambda seconds: True)
        self.counters = Counters()

    def schedule(self, call: Callable[[], Any]) -> _Value:
        self.values.append(_Value(call))
        return self.values[-1]


def _input(coordinator: Any, *, is_in_order: bool) -> PredictInput:
    codec: Any = types.SimpleNamespace()
    function = PredictFunction(lambda group: group, codec)
    functions: Any = types.SimpleNamespace(
        states=types.SimpleNamespace(in_order=is_in_order),
        on_group=lambda codec: function,
    )
    batches = itertools.repeat(tf.constant(["a batch"]))
    return PredictInput(
        coordinator,
        lambda: functions,
        batches,
        codec,
        num_batches=6,
        steps_per_closure=lambda sent: 2,
    )


@pytest.mark.parametrize(("is_in_order", "most"), [(True, 1), (False, 3)])
def test_one_call_in_flight_where_the_order_counts(
    is_in_order: bool, most: int
) -> None:
    coordinator = _Coordinator()
    given = _input(coordinator, is_in_order=is_in_order)
    assert given.has_next()
    assert len(coordinator.values) == most
    coordinator.values[0].is_done = True
    next(given)
    next(given)
    assert len(coordinator.values) == max(most, 2)


def test_a_call_that_was_broken_off_is_not_made_again() -> None:
    """Its state may have changed: later results would be wrong."""
    coordinator = _Coordinator()
    assert _input(coordinator, is_in_order=True).has_next()
    (value,) = coordinator.values
    value.call()
    assert coordinator.counters.value("batches_predicted") == 2
    with pytest.raises(errors.WorkerLostError, match="reset_state"):
        value.call()


def test_other_calls_are_made_again() -> None:
    coordinator = _Coordinator()
    assert _input(coordinator, is_in_order=False).has_next()
    first = coordinator.values[0]
    assert len(first.call()) == len(first.call()) == 2
