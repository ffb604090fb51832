from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.training.optimizers.catch_up import learning_rates

_schedules = keras.optimizers.schedules


class _OneAtATime(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        return 0.1 if step < 5 else 0.01

    def get_config(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    "schedule",
    [
        _schedules.ExponentialDecay(0.1, 10, 0.9),
        _schedules.ExponentialDecay(0.1, 10, 0.9, staircase=True),
        _schedules.CosineDecay(0.1, 200, warmup_target=0.3, warmup_steps=20),
        _schedules.InverseTimeDecay(0.1, 10, 0.5),
        _schedules.PiecewiseConstantDecay([5, 30], [0.1, 0.05, 0.01]),
        _schedules.PolynomialDecay(0.1, 50),
        _schedules.CosineDecayRestarts(0.1, 20),
        _OneAtATime(),
    ],
)
def test_rates_are_those_of_the_steps_or_unknown(schedule: Any) -> None:
    rates = learning_rates.ahead(keras.optimizers.SGD(schedule))
    if rates is None:
        return
    steps = np.arange(1, 60, dtype=np.float64)
    # Keras passes the number of steps done before.
    expected = [float(schedule(int(step) - 1)) for step in steps]
    np.testing.assert_allclose(rates(tf.constant(steps)), expected, rtol=1e-5)


def test_most_schedules_are_known_ahead() -> None:
    for schedule in (
        _schedules.ExponentialDecay(0.1, 10, 0.9),
        _schedules.CosineDecay(0.1, 200),
        _schedules.InverseTimeDecay(0.1, 10, 0.5),
    ):
        assert learning_rates.ahead(keras.optimizers.SGD(schedule)) is not None


def test_what_takes_one_step_at_a_time_is_not_known_ahead() -> None:
    optimizer = keras.optimizers.SGD(_OneAtATime())
    assert learning_rates.ahead(optimizer) is None


def test_a_rate_that_is_assigned_is_not_known_ahead() -> None:
    assert learning_rates.ahead(keras.optimizers.SGD(0.1)) is None
