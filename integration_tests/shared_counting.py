"""A model whose weights count the updates that they have had.

Each step adds the mean of the inputs of its batch to each weight: with inputs
that are one, a weight is the number of updates of its parameter server. So a
step sees how many steps of others it has waited for.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from shared_gate import Gate

_PROBE_SECONDS = 0.02
_DEADLINE_SECONDS = 30.0
# Number of a step that does not check what it sees.
UNCHECKED = -1


class Weighing(keras.layers.Layer):
    """Multiplies each column by a weight."""

    def build(self, input_shape: Any) -> None:
        self.weight = self.add_weight(
            shape=(input_shape[-1],), initializer="zeros", name="weight"
        )

    def call(self, inputs: Any) -> Any:
        return inputs * self.weight


def mean_target(y_true: Any, y_pred: Any) -> Any:
    """Returns a metric that does not depend on the weights."""
    del y_pred
    return tf.reduce_mean(y_true[:, :1], axis=-1)


def model(
    strategy: Any,
    *,
    num_workers: int = 1,
    max_staleness: int | None = None,
    gate: Gate | None = None,
    **options: Any,
) -> keras.Model:
    """Returns a compiled model with two weights.

    Targets are `(number of the worker's step, whether it stops at the gate)`.

    Args:
        strategy: The strategy.
        num_workers: Number of workers that take part in all steps.
        max_staleness: The bound that each step checks; None: none does.
        gate: Holds up steps.
        **options: Of `compile`.
    """

    def loss(target: tf.Tensor, predicted: tf.Tensor) -> tf.Tensor:
        checks = []
        if max_staleness is not None:
            checks = _checks(
                target[0, 0], predicted[0], num_workers - 1, max_staleness
            )
        if gate is not None:
            with tf.control_dependencies([predicted]):
                checks.append(gate.passing(tf.reduce_any(target[:, 1] > 0)))
        with tf.control_dependencies(checks):
            predicted = tf.identity(predicted)
        # The gradient has to wait, too.
        one = tf.cast(tf.reduce_min(predicted) >= 0, tf.float32)
        return -tf.reduce_sum(predicted * one, axis=-1)

    with strategy.scope():
        made = keras.Sequential([keras.Input((2,)), Weighing()])
        made.compile(keras.optimizers.SGD(1.0), loss, **options)
        made.optimizer.build(made.trainable_variables)
    return made


def _checks(
    number: tf.Tensor, seen: tf.Tensor, num_others: int, max_staleness: int
) -> list[tf.Operation]:
    """Checks the number of updates that a step sees, on each ps."""
    least = num_others * tf.maximum(number - max_staleness, 0)
    most = num_others * (number + max_staleness + 1)
    of_others = seen - number
    is_checked = number >= 0
    return [
        tf.debugging.assert_equal(
            ~is_checked
            | tf.reduce_all((of_others >= least) & (of_others <= most)),
            True,
            "the bound is broken",
        )
    ]


def steps(number: int, *, first: int = 0, held: int | None = None) -> Any:
    """Returns inputs and targets of some steps of a worker.

    Args:
        number: Number of steps.
        first: Number of the first one; `UNCHECKED`: none is checked.
        held: The step that stops at the gate.
    """
    targets = np.zeros((number, 1, 2), "float32")
    targets[:, 0, 0] = (
        UNCHECKED if first == UNCHECKED else (np.arange(first, first + number))
    )
    if held is not None:
        targets[held, 0, 1] = 1.0
    return np.ones((number, 1, 2), "float32"), targets


def num_updates(model: keras.Model) -> list[int]:
    """Returns the number of updates of each weight, at this moment.

    Called on another thread than that of `fit`, it waits for no step.
    """
    values = keras.ops.convert_to_numpy(model.layers[0].weight)
    return [round(float(value)) for value in values]


def wait_until(
    is_true: Callable[[], bool], seconds: float = _DEADLINE_SECONDS
) -> None:
    """Probes until a condition holds."""
    never = threading.Event()
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        never.wait(_PROBE_SECONDS)
