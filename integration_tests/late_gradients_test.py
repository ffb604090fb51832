"""Tests of gradients that come late to a table that evicts rows.

Rows of other ids, which no gradient has, are as new as they were made.
"""

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from shared_gate import Gate

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_DEADLINE_SECONDS = 60.0
_FIRST = keras.initializers.RandomNormal(stddev=0.1, seed=9)

Make = Callable[..., tfps.ParameterServerStrategy]


def _first_rows(ids: np.ndarray) -> Any:
    # It has met none of them.
    return _evicting()(tf.constant(ids), training=False)


def _evicting() -> tfps.layers.DynamicEmbedding:
    return tfps.layers.DynamicEmbedding(
        4,
        _FIRST,
        capacity=1000,
        eviction=tfps.layers.Eviction("least_recent"),
        name="items",
    )


_LATE_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "once": lambda: keras.optimizers.SGD(1.0),
    "twice": lambda: keras.optimizers.SGD(1.0),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(1.0), 1.0
    ),
    "summed": lambda: keras.optimizers.SGD(1.0, gradient_accumulation_steps=2),
    "exact": lambda: keras.optimizers.SGD(1.0, momentum=0.5),
}


@pytest.mark.parametrize("kind", _LATE_OPTIMIZERS)
def test_late_gradients_do_not_change_rows_of_other_ids(
    make: Make, gate: Gate, kind: str
) -> None:
    strategy = make(
        sparse_update="exact" if kind == "exact" else "lazy",
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
    )
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        layer = _evicting()
        layer.build((None,))
        optimizer = _LATE_OPTIMIZERS[kind]()
        optimizer.build(layer.trainable_variables)
    early = np.arange(20)
    num_others, size = 120, 100

    def step() -> None:
        halves = np.split(early, 2) if kind == "twice" else [early]
        with tf.GradientTape() as tape:
            rows = tf.concat(
                [layer(tf.constant(half), training=True) for half in halves], 0
            )
            passing = gate.passing(tf.constant(True))
            # As if the worker stood still before it has the gradients.
            with tf.control_dependencies([rows, passing]):
                rows = tf.identity(rows)
            loss = tf.reduce_sum(tf.square(rows))
            if kind == "scaled":
                loss = optimizer.scale_loss(loss)
        weights = layer.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

    run = tf.function(lambda: strategy.run(step))

    @tf.function
    def others(number: tf.Tensor) -> None:
        first = 1000 + number * size
        layer(tf.range(first, first + size), training=True)

    def let_others_go_on() -> None:
        gate.let_others_pass()
        try:
            ended = [
                coordinator.schedule(
                    others, args=(tf.constant(number, tf.int64),)
                )
                for number in range(num_others)
            ]
            for each in ended:
                each.fetch()
        finally:
            gate.open()

    gate.once_reached(let_others_go_on)
    coordinator.schedule(run)
    coordinator.join()
    gate.assert_acted()
    if kind == "summed":
        coordinator.schedule(run)
        coordinator.join()
    ids, rows = layer.export()
    are_others = ids >= 1000
    assert np.sum(are_others) > 500
    assert np.all(are_others) or kind == "summed"
    ids, rows = ids[are_others], rows[are_others]
    np.testing.assert_array_equal(rows, _first_rows(ids))
    coordinator.close()


class _Penalty(keras.Model):
    """A model that shrinks rows, and whose steps may pass a gate before.

    The gradients of examples whose weight is zero are zero.
    """

    def __init__(
        self, layer: Any, gate: Gate, *, is_called_twice: bool
    ) -> None:
        super().__init__()
        self.layer, self.gate = layer, gate
        self.is_called_twice = is_called_twice

    def train_step(self, data: Any) -> dict[str, Any]:
        ids, weights = data
        halves = tf.split(ids, 2) if self.is_called_twice else [ids]
        with tf.GradientTape() as tape:
            rows = tf.concat(
                [self.layer(half, training=True) for half in halves], 0
            )
            # As if the worker stood still before it has the gradients.
            passing = self.gate.passing(tf.reduce_any(weights > 0.0))
            with tf.control_dependencies([rows, passing]):
                rows = tf.identity(rows)
            loss = tf.reduce_sum(weights[:, None] * tf.square(rows))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


@pytest.mark.parametrize("is_called_twice", [False, True])
@pytest.mark.parametrize("local_steps", [1, 2])
def test_late_gradients_of_fit_do_not_change_rows_of_other_ids(
    make: Make, gate: Gate, local_steps: int, is_called_twice: bool
) -> None:
    strategy = make(
        consistency=tfps.Async(local_steps=local_steps),
        # The worker that stands still holds few of the steps.
        scheduling=tfps.SchedulingOptions(
            max_closures_in_flight_per_worker=1, steps_per_closure=10
        ),
    )
    with strategy.scope():
        layer = _evicting()
        layer.build((None,))
        model = _Penalty(layer, gate, is_called_twice=is_called_twice)
        model.compile(keras.optimizers.SGD(1.0))
        model.optimizer.build(layer.trainable_variables)
    size = 100

    def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        if context.input_pipeline_id == 0:
            return tf.data.Dataset.from_tensors(
                (tf.range(size, dtype=tf.int64), tf.ones([size]))
            ).repeat()
        return tf.data.Dataset.range(1_000_000).map(
            lambda n: (
                1000 + n * size + tf.range(size, dtype=tf.int64),
                tf.zeros([size]),
            )
        )

    def wait_for_evictions() -> None:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        try:
            # More than the table has, so that the early rows have gone.
            while layer.statistics()["evicted"] < 5_000:
                assert time.monotonic() < deadline
        finally:
            gate.open()

    gate.once_reached(wait_for_evictions)
    model.fit(tfps.DatasetCreator(batches), steps_per_epoch=800, verbose=0)
    gate.assert_acted()
    ids, rows = layer.export()
    are_others = ids >= 1000
    assert np.sum(are_others) > 500
    ids, rows = ids[are_others], rows[are_others]
    np.testing.assert_array_equal(rows, _first_rows(ids))
