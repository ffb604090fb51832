"""Tests of losses of steps that several replicas make."""

import types
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.training.patches import average_losses
from tfps_plugin.variables.step_trace import StepTrace


@pytest.fixture
def two_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the code under test see a step of two replicas."""
    monkeypatch.setattr(average_losses, "_num_replicas", lambda: 2)


_average = average_losses.compute_average_loss(tf.nn.compute_average_loss)
_scale = average_losses.scale_regularization_loss(
    tf.nn.scale_regularization_loss
)


def _value_and_gradient(
    loss: Any, x: tf.Tensor, *, in_function: bool
) -> tuple[float, list[float]]:
    def run(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = loss(x)
        return value, tape.gradient(value, x)

    value, gradient = (
        tf.function(run, autograph=False) if in_function else run
    )(x)
    return float(value), gradient.numpy().tolist()


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("size", [None, 8])
@pytest.mark.usefixtures("two_replicas")
def test_the_value_is_a_part_and_the_gradient_that_of_the_mean(
    size: int | None, *, in_function: bool
) -> None:
    x = tf.constant([1.0, 3.0])
    value, gradient = _value_and_gradient(
        lambda x: _average(x * x, global_batch_size=size),
        x,
        in_function=in_function,
    )
    # Of two replicas with two examples each, or of eight examples.
    assert value == 10.0 / (size or 4)
    assert gradient == [1.0, 3.0]


@pytest.mark.usefixtures("two_replicas")
def test_weights_of_examples_count() -> None:
    value, gradient = _value_and_gradient(
        lambda x: _average(x, tf.constant([2.0, 0.0])),
        tf.constant([1.0, 3.0]),
        in_function=True,
    )
    assert value == 0.5
    assert gradient == [1.0, 0.0]


@pytest.mark.usefixtures("two_replicas")
def test_a_penalty_is_shown_in_parts_and_differentiated_as_a_whole() -> None:
    value, gradient = _value_and_gradient(
        lambda x: _scale(tf.reduce_sum(x * x)),
        tf.constant([1.0, 3.0]),
        in_function=True,
    )
    assert value == 5.0
    assert gradient == [2.0, 6.0]


def test_nothing_changes_elsewhere() -> None:
    losses = tf.constant([1.0, 3.0])
    assert _average(losses, global_batch_size=8).numpy() == 0.5
    assert _scale(tf.constant(4.0)).numpy() == 4.0


def _strategy(replicas: int, workers: int) -> Any:
    strategy = object.__new__(average_losses.ParameterServerStrategy)
    strategy._replica_devices = ("",) * replicas
    strategy._extended = types.SimpleNamespace(num_batches_in_sync=workers)
    return strategy


@pytest.mark.parametrize(
    ("has_replica", "exact", "expected"),
    [(False, None, 1), (True, False, 2), (True, True, 6), (False, True, 3)],
)
def test_replicas_of_workers_count_if_they_make_the_step_together(
    monkeypatch: pytest.MonkeyPatch,
    has_replica: bool,
    exact: bool | None,
    expected: int,
) -> None:
    trace = StepTrace()
    if has_replica:
        trace.replica = types.SimpleNamespace()
    if exact is not None:
        trace.exchange = types.SimpleNamespace(reads_exactly=exact)
    monkeypatch.setattr(StepTrace, "current", lambda: trace)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: _strategy(2, 3))
    assert average_losses._num_replicas() == expected
