"""Tests that waits for input are told from input that costs nothing."""

from collections.abc import Callable

import pytest
import tensorflow as tf

from tfps_plugin.training.steps.traced import input_waits
from tfps_plugin.training.steps.traced.input_waits import Waits

_ROUNDS = 6
_STEPS = 4
_BEGIN = 1000.0


def _sum(
    wait: Callable[[Waits, tf.Tensor], Waits],
    lasts: float,
    arrives: float,
    waits: Waits,
    last: float = 0.0,
) -> float:
    """Returns the waits of rounds that last so long, and then of a last one."""
    now = _BEGIN
    for _ in range(_ROUNDS + 1):
        begun_at = tf.constant(now, tf.float64)
        waits = wait(waits, begun_at)._replace(
            begun_at=begun_at, arrived_at=begun_at + arrives
        )
        now += lasts
    return float(input_waits.total(waits, begun_at + last))


def _at_once(waits: Waits, begun_at: tf.Tensor) -> Waits:
    return input_waits.at_once(waits, begun_at, _STEPS)


def _ahead(step: float, batch: float, first: float = 0.0) -> float:
    """Returns the waits for batches that take so long, as steps do."""
    before = input_waits.after_first(
        tf.constant(_BEGIN - first, tf.float64),
        tf.constant(_BEGIN, tf.float64),
    )
    lasts = max(step, batch + 0.001)
    return _sum(input_waits.ahead, lasts, batch, before, step)


@pytest.mark.parametrize("step", [0.0, 0.02, 0.09])
def test_a_batch_that_comes_last_is_waited_for(step: float) -> None:
    found = _ahead(step, 0.1)
    assert found == pytest.approx(_ROUNDS * (0.101 - step))


@pytest.mark.parametrize("batch", [0.0, 0.02, 0.08, 0.095, 0.099])
def test_a_batch_that_comes_during_the_step_costs_nothing(
    batch: float,
) -> None:
    assert _ahead(0.1, batch) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("step", [0.1, 0.5])
def test_a_last_step_that_takes_longer_makes_no_negative_wait(
    step: float,
) -> None:
    before = input_waits.none()
    assert _sum(input_waits.ahead, 0.1, 0.099, before, step) == 0.0


def test_the_first_batch_is_always_waited_for() -> None:
    assert _ahead(0.1, 0.0, first=0.3) == pytest.approx(0.3)


@pytest.mark.parametrize("step", [0.01, 0.05, 0.1])
def test_rounds_wait_for_batches_that_are_slower_than_steps(
    step: float,
) -> None:
    batch = 0.1
    lasts = _STEPS * batch + step
    waited = _ROUNDS * (lasts - _STEPS * step)
    found = _sum(_at_once, lasts, _STEPS * batch, input_waits.none())
    assert found == pytest.approx(waited)


def test_rounds_do_not_wait_for_fast_batches() -> None:
    assert _sum(_at_once, 0.4, 0.0, input_waits.none()) == 0.0
    # One batch of a round, at most.
    found = _sum(_at_once, 0.41, 0.04, input_waits.none())
    assert 0.0 <= found <= _ROUNDS * 0.01


def test_time_stamps_follow_what_they_come_after() -> None:
    @tf.function
    def stamps() -> tuple[tf.Tensor, tf.Tensor]:
        first = input_waits.now([])
        return first, input_waits.now({"a": [first]})

    first, second = stamps()
    assert float(first) <= float(second)
