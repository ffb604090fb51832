"""Tests that lookups in loops and branches give the numbers of one process."""

import os
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_ROWS = 40
_WIDTH = 4
_LENGTH = 5
_BATCH = 8
_STEPS = 12
_BEAMS = 3


class Cell(keras.layers.Layer):
    """A recurrent cell that takes ids."""

    state_size = _WIDTH

    def __init__(self, table: keras.layers.Layer, **options: Any) -> None:
        super().__init__(**options)
        self.table = table

    def build(self, input_shape: Any) -> None:
        if not self.table.built:
            self.table.build(input_shape)
        super().build(input_shape)

    def call(self, ids: Any, states: Any, training: Any = None) -> Any:
        state = keras.ops.tanh(states[0] + self.table(ids[:, 0]))
        return state, [state]


class Translator(keras.Model):
    """Model that reads and writes ids, and looks each up for the next."""

    def __init__(self) -> None:
        super().__init__()
        self.read = keras.layers.Embedding(_ROWS, _WIDTH)
        self.write = keras.layers.Embedding(_ROWS, _WIDTH)
        self.hint = keras.layers.Embedding(_ROWS, _WIDTH)
        self.rnn = keras.layers.RNN(Cell(self.read))
        self.scores = keras.layers.Dense(_ROWS)

    def call(self, inputs: Any, training: Any = None) -> Any:
        ids, targets = inputs["ids"], inputs["targets"]
        state = self.rnn(ids[..., None])
        # A lookup in one branch only, and one for each example.
        state += tf.cond(
            tf.reduce_sum(ids) % 2 == 0,
            lambda: tf.reduce_mean(self.hint(ids), 1),
            lambda: tf.zeros_like(state),
        )
        state += keras.ops.vectorized_map(
            lambda row: tf.reduce_mean(self.hint(row), 0), ids
        )
        if training:
            return self._scheduled_sampling(state, targets)
        return self._beam_search(state, targets[:, 0])

    def _scheduled_sampling(self, state: Any, targets: Any) -> Any:
        """Returns the sums of all places' scores, after true or sampled ids."""

        def place(number: Any, before: Any, state: Any, sums: Any) -> Any:
            rows = tf.cond(
                (tf.reduce_sum(targets[:, number]) + number) % 2 == 0,
                lambda: self.write(targets[:, number]),
                lambda: self.write(before),
            )
            state = tf.tanh(state + rows)
            scores = self.scores(state)
            written = tf.argmax(scores, 1, tf.int32)
            return number + 1, written, state, sums + scores

        return tf.while_loop(
            lambda number, *_: number < _LENGTH,
            place,
            (
                tf.constant(0),
                targets[:, 0],
                state,
                tf.zeros([tf.shape(targets)[0], _ROWS]),
            ),
            shape_invariants=(
                tf.TensorShape([]),
                tf.TensorShape([None]),
                tf.TensorShape([None, _WIDTH]),
                tf.TensorShape([None, _ROWS]),
            ),
        )[-1]

    def _beam_search(self, state: Any, first: Any) -> Any:
        """Returns ids at the ends of the best beams, and their scores."""
        states = tf.repeat(state[:, None], _BEAMS, 1)
        ends = tf.repeat(first[:, None], _BEAMS, 1)
        # Beams that are all the same would be found that often.
        totals = tf.zeros_like(ends, tf.float32) - [0.0, 9.0, 9.0]

        def place(number: Any, ends: Any, states: Any, totals: Any) -> Any:
            states = tf.tanh(states + self.write(ends))
            scores = totals[..., None] + tf.nn.log_softmax(self.scores(states))
            totals, best = tf.math.top_k(
                tf.reshape(scores, [-1, _BEAMS * _ROWS]), _BEAMS
            )
            states = tf.gather(states, best // _ROWS, batch_dims=1)
            return number + 1, best % _ROWS, states, totals

        _, ends, _, totals = keras.ops.while_loop(
            lambda number, *_: number < _LENGTH,
            place,
            (tf.constant(0), ends, states, totals),
        )
        return tf.concat([tf.cast(ends, tf.float32), totals], 1)


def _examples(_: Any = None) -> tf.data.Dataset:
    random = np.random.default_rng(7)
    size = (_BATCH * _STEPS, _LENGTH)
    inputs = {
        "ids": random.integers(0, _ROWS, size).astype("int32"),
        "targets": random.integers(0, _ROWS, size).astype("int32"),
    }
    labels = random.integers(0, _ROWS, size[:1]).astype("int32")
    return tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(
        _BATCH, drop_remainder=True
    )


def _loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _translator() -> Translator:
    keras.utils.set_random_seed(2)
    model = Translator()
    model.compile(
        # With Adagrad, one process trains this model to different weights
        # eagerly and in a function, so there is no reference.
        keras.optimizers.SGD(0.1),
        _loss(),
    )
    model(next(iter(_examples()))[0], training=True)
    return model


def _weights(model: keras.Model) -> list[np.ndarray]:
    return [variable.numpy() for variable in model.trainable_variables]


@pytest.fixture(scope="module")
def alone() -> tuple[list[np.ndarray], np.ndarray]:
    """Returns weights and predictions of one process."""
    model = _translator()
    model.fit(_examples(), verbose=0, shuffle=False)
    return _weights(model), model.predict(_examples(), verbose=0)


@pytest.fixture(params=["sharded", "whole", "sharded, not fused"])
def strategy(
    cluster: tfps.LocalCluster, request: pytest.FixtureRequest
) -> Iterator[tfps.ParameterServerStrategy]:
    shards = 1 if request.param == "whole" else 2
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(shards),
        communication=tfps.CommunicationOptions(
            fusion=not request.param.endswith("not fused")
        ),
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
    )
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


def test_scheduled_sampling_and_beam_search(
    strategy: tfps.ParameterServerStrategy,
    alone: tuple[list[np.ndarray], np.ndarray],
) -> None:
    with strategy.scope():
        model = _translator()
    model.fit(tfps.DatasetCreator(_examples), steps_per_epoch=_STEPS, verbose=0)
    weights, predictions = alone
    for mine, theirs in zip(_weights(model), weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(
        model.predict(_examples(), verbose=0), predictions, rtol=1e-3, atol=1e-4
    )


def test_a_scheduled_function_with_a_tape(
    strategy: tfps.ParameterServerStrategy,
    alone: tuple[list[np.ndarray], np.ndarray],
) -> None:
    with strategy.scope():
        model = _translator()
    coordinator = tfps.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(_examples))

    @tf.function
    def step(iterator: Any) -> None:
        inputs, labels = next(iterator)
        with tf.GradientTape() as tape:
            loss = model.compute_loss(
                y=labels, y_pred=model(inputs, training=True)
            )
        variables = model.trainable_variables
        gradients = tape.gradient(loss, [v.value for v in variables])
        assert all(gradient is not None for gradient in gradients)
        model.optimizer.apply(gradients, variables)

    for _ in range(_STEPS):
        coordinator.schedule(step, args=(iterator,))
    coordinator.join()
    for mine, theirs in zip(_weights(model), alone[0], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)


class Scored(keras.Model):
    """Model that weighs rows by a Python function of their ids."""

    def __init__(self, score: Callable[[Any], Any]) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(_ROWS, _WIDTH)
        self.score = score
        self.scores = keras.layers.Dense(_ROWS)

    def call(self, inputs: Any) -> Any:
        ids = inputs["ids"]
        weights = tf.py_function(self.score, [ids], tf.float32)
        weights.set_shape(ids.shape)
        rows = self.table(ids) * weights[..., None]
        return self.scores(tf.reduce_sum(rows, 1))


@pytest.mark.parametrize("strategy", ["sharded"], indirect=True)
def test_python_in_a_model_runs_on_the_chief(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    processes = []

    def score(ids: Any) -> Any:
        processes.append(os.getpid())
        return tf.cast(ids % 3, tf.float32)

    def model() -> Scored:
        keras.utils.set_random_seed(2)
        scored = Scored(score)
        scored.compile("sgd", _loss())
        scored(next(iter(_examples()))[0])
        return scored

    by_itself = model()
    by_itself.fit(_examples(), verbose=0, shuffle=False)
    with strategy.scope():
        scored = model()
    processes.clear()
    scored.fit(
        tfps.DatasetCreator(_examples), steps_per_epoch=_STEPS, verbose=0
    )
    assert processes == [os.getpid()] * _STEPS
    for mine, theirs in zip(_weights(scored), _weights(by_itself), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
