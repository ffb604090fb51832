"""Tests of rounds of local steps, on variables of this process."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.training.local.local_rounds import LocalRounds
from tfps_plugin.training.local.local_rounds import Source
from tfps_plugin.variables import testing
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.step_trace import Update

_RATE = 0.25
_RANDOM = np.random.default_rng(0)
_TABLE = _RANDOM.normal(size=(5, 3)).astype("float32")
_WEIGHT = _RANDOM.normal(size=(3,)).astype("float32")
_OFFSET = _RANDOM.normal(size=(3,)).astype("float32")
_IDS = np.array([[0, 1], [1, 4], [1, 1], [3, 0], [2, 1], [4, 4], [0, 2]])
_SOURCE = Source(
    (tf.TensorSpec([None, 2], tf.int64),),
    first=lambda ids: tf.constant(0),
    goes_on=lambda ids, done, _: tf.constant(True),
    batch=lambda ids, done, _: ids[done],
    following=lambda ids, done, left: tf.constant(0),
)
_BATCH = tf.TensorSpec([2], tf.int64)


class _Descent(keras.optimizers.SGD):
    """Plain gradient descent; it also counts how often it is applied."""

    def __init__(self, **options: Any) -> None:
        super().__init__(_RATE, **options)
        self.count = tf.Variable(0)

    def apply(self, gradients: Any, variables: Any = None) -> None:
        trace = StepTrace.current()
        if trace.accrual is not None:
            trace.accrual.push(self, gradients, variables)
            return
        if trace.updates is not None:
            trace.updates.append(Update(self, gradients, variables))
        self.count.assign_add(1)
        for gradient, variable in zip(gradients, variables, strict=True):
            variable.assign_sub(_RATE * tf.convert_to_tensor(gradient))


class _Training:
    """A table, a weight, and an offset that is not trained."""

    def __init__(self, num_shards: int = 2, **options: Any) -> None:
        self.table = testing.sharded_variable(_TABLE, num_shards)
        self.weight = testing.remote_variable(_WEIGHT)
        self.offset = testing.remote_variable(_OFFSET, trainable=False)
        self.optimizer = _Descent(**options)

    def step(self, ids: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            rows = tf.gather(self.table, ids)
            loss = tf.reduce_sum((rows * self.weight + self.offset) ** 2)
        variables = [self.table, self.weight]
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}

    def round(self, local_steps: int = 4, step: Any = None) -> Any:
        step = step or self.step

        def plain(ids: tf.Tensor) -> Any:
            StepTrace.current().updates = []
            return step(ids)

        rounds = LocalRounds(
            tf.function(plain, autograph=False),
            step,
            local_steps,
            lambda: [self.table, self.weight, self.offset],
        )
        return rounds.traced(_BATCH, _SOURCE)


def _in_numpy(
    num_steps: int, limit: float | None = None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns table and weight after a round, and the loss of its last step."""
    local = _WEIGHT.copy()
    of_table, of_weight = np.zeros_like(_TABLE), np.zeros_like(_WEIGHT)
    for ids in _IDS[:num_steps]:
        rows = _TABLE[ids]
        outputs = rows * local + _OFFSET
        loss = (outputs**2).sum()
        np.add.at(of_table, ids, 2 * outputs * local)
        gradient = (2 * outputs * rows).sum(axis=0)
        of_weight += gradient
        if limit is not None:
            gradient = np.clip(gradient, -limit, limit)
        local = local - _RATE * gradient
    return _TABLE - _RATE * of_table, _WEIGHT - _RATE * of_weight, loss


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("left", [1, 3, 4, 7])
def test_a_round_applies_the_sum_of_its_gradients_once(
    left: int, num_shards: int
) -> None:
    training = _Training(num_shards)
    made = training.round()(tf.constant(_IDS), tf.constant(left))
    num_steps = min(left, 4)
    assert int(made.num_steps) == num_steps
    table, weight, loss = _in_numpy(num_steps)
    np.testing.assert_allclose(training.table.numpy(), table, 1e-5)
    np.testing.assert_allclose(training.weight.numpy(), weight, 1e-5)
    np.testing.assert_allclose(made.outputs["loss"], loss, 1e-5)
    assert int(training.optimizer.count) == 1


def test_the_copy_is_rounded_as_weights_are_that_a_step_reads() -> None:
    training = _Training()
    training.weight.wire_dtype = tf.bfloat16
    training.round()(tf.constant(_IDS), tf.constant(1))
    rounded = tf.cast(tf.cast(_WEIGHT, tf.bfloat16), tf.float32).numpy()
    rows = _TABLE[_IDS[0]]
    # This optimizer applies gradients as they are.
    gradient = (2 * (rows * rounded + _OFFSET) * rows).sum(axis=0)
    np.testing.assert_allclose(
        training.weight.numpy(), _WEIGHT - _RATE * gradient, 1e-5
    )


def test_the_copy_moves_by_clipped_gradients() -> None:
    training = _Training(clipvalue=0.5)
    training.round()(tf.constant(_IDS), tf.constant(4))
    # This optimizer clips nothing itself.
    table, weight, _ = _in_numpy(4, limit=0.5)
    np.testing.assert_allclose(training.table.numpy(), table, 1e-5)
    np.testing.assert_allclose(training.weight.numpy(), weight, 1e-5)


def test_a_loop_of_a_step_reads_the_copy() -> None:
    training = _Training()

    def step(ids: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            rows = tf.gather(training.table, ids)
            (total,) = tf.while_loop(
                lambda _: tf.constant(True),
                lambda total: [
                    total
                    + tf.reduce_sum(
                        (rows * training.weight + training.offset) ** 2
                    )
                ],
                [tf.constant(0.0)],
                maximum_iterations=1,
            )
        variables = [training.table, training.weight]
        training.optimizer.apply(tape.gradient(total, variables), variables)
        return {"loss": total}

    training.round(step=step)(tf.constant(_IDS), tf.constant(4))
    table, weight, _ = _in_numpy(4)
    np.testing.assert_allclose(training.table.numpy(), table, 1e-5)
    np.testing.assert_allclose(training.weight.numpy(), weight, 1e-5)


def _refused(training: _Training, step: Any, reason: str) -> None:
    with pytest.raises(errors.UnsupportedError, match=reason):
        training.round(step=step)
    np.testing.assert_array_equal(training.weight.numpy(), _WEIGHT)


def test_a_step_without_updates_is_refused() -> None:
    _refused(_Training(), lambda ids: {}, r"this step does not.*Received: none")


def test_a_step_that_assigns_its_weights_is_refused() -> None:
    training = _Training()

    def step(ids: tf.Tensor) -> Any:
        training.weight.assign(training.weight * 2.0)
        return training.step(ids)

    _refused(training, step, r"Received: assign of 'variable' in a step")


def test_a_function_that_has_read_weights_before_is_refused() -> None:
    training = _Training()

    @tf.function
    def weighed(rows: tf.Tensor) -> tf.Tensor:
        return rows * training.weight

    def step(ids: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weighed(tf.gather(training.table, ids)))
        variables = [training.table, training.weight]
        training.optimizer.apply(tape.gradient(loss, variables), variables)
        return {}

    _refused(training, step, r"used by the operation")


def test_updates_in_a_branch_are_refused() -> None:
    training = _Training()

    def step(ids: tf.Tensor) -> Any:
        def apply() -> tf.Tensor:
            training.step(ids)
            return tf.constant(0)

        tf.cond(ids[0] > 0, apply, lambda: tf.constant(0))
        return {}

    _refused(training, step, r"applied inside of one")


def test_updates_that_change_between_traces_are_refused() -> None:
    training = _Training()
    variables = [[training.weight], [training.table]]

    def step(ids: tf.Tensor) -> Any:
        chosen = variables.pop(0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(training.weight) + tf.reduce_sum(
                tf.gather(training.table, ids)
            )
        training.optimizer.apply(tape.gradient(loss, chosen), chosen)
        return {}

    _refused(training, step, r"other variables in update 1")


def test_weights_elsewhere_are_refused() -> None:
    training = _Training()
    elsewhere = tf.Variable([1.0])

    def step(ids: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(elsewhere * 2.0)
        gradients = tape.gradient(loss, [elsewhere])
        training.optimizer.apply(gradients, [elsewhere])
        return {}

    _refused(training, step, r"created in strategy.scope")
