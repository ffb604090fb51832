"""Tests of a clock whose scalars have copies for lanes."""

from typing import Any

import keras
import pytest
import tensorflow as tf

from tfps_plugin.training.optimizers.catch_up import moment
from tfps_plugin.training.optimizers.catch_up import of_keras
from tfps_plugin.training.optimizers.catch_up import step_clock
from tfps_plugin.training.optimizers.catch_up.step_clock import StepClock
from tfps_plugin.transport.passes.inlining import flatten
from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.mirrored_scalar import MirroredScalar


def _mirrored(name: str) -> MirroredScalar:
    scalar = MirroredScalar(
        testing.LOCAL_DEVICE, tf.float64, name, trainable=False
    )
    scalar.assign(0.0)
    return scalar


def _clock(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[keras.optimizers.Optimizer, StepClock]:
    monkeypatch.setattr(step_clock, "_scalar", _mirrored)
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    )
    optimizer.build([keras.Variable([0.0])])
    rule = of_keras.zero_gradients(optimizer)
    return optimizer, StepClock(optimizer, rule, 0.1)


def test_a_lost_potential_is_that_of_the_latest_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under a falling schedule, an old potential is larger."""
    optimizer, clock = _clock(monkeypatch)

    @tf.function
    def step() -> Any:
        now = clock.now(exactly=True)
        after = clock.after(now)
        clock.advance(now, after)
        optimizer.iterations.assign_add(1)
        return after.numbers

    with testing.lane(0):
        first = clock.moment(step())
    with testing.lane(1):
        for _ in range(6):
            last = clock.moment(step())
    assert float(first.mark(moment.POTENTIAL)) > 2 * float(
        last.mark(moment.POTENTIAL)
    )
    for name in (moment.ELAPSED, moment.POTENTIAL):
        newest = clock._scalars[name].newest_copy()
        assert float(newest) == pytest.approx(float(last.mark(name)))


def test_the_clock_waits_for_the_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, clock = _clock(monkeypatch)

    def step(x: tf.Tensor) -> None:
        now = clock.now(exactly=True)
        clock.advance(now, clock.after(now), [tf.sin(x)])

    function = tf.function(step).get_concrete_function(tf.TensorSpec([]))
    flat = flatten(function.graph)
    after: list[bool] = []
    for each in flat.operations:
        before = {output.node for output in each.inputs} | {*each.controls}
        is_gradient = each.operation.type == "Sin"
        after.append(is_gradient or any(after[number] for number in before))
    counts = [
        waits
        for each, waits in zip(flat.operations, after, strict=True)
        if each.operation.type == "AssignAddVariableOp"
    ]
    assert counts
    assert all(counts)
