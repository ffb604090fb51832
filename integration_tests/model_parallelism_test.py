"""Tests of functions and models that name a worker of another one's step."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_halves
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_FIRST, _SECOND = "/job:worker/task:0", "/job:worker/task:1"

Make = Callable[..., tfps.ParameterServerStrategy]


@pytest.fixture
def make(cluster: tfps.LocalCluster) -> Iterator[Make]:
    made = []

    def make(**options: Any) -> tfps.ParameterServerStrategy:
        made.append(
            tfps.ParameterServerStrategy(cluster.cluster_resolver, **options)
        )
        return made[-1]

    yield make
    for strategy in made:
        tfps.ClusterCoordinator(strategy).close()


@pytest.mark.parametrize("fusion", [True, False])
def test_halves_on_two_workers_train_as_in_one_process(
    make: Make, fusion: bool
) -> None:
    alone = shared_halves.halves(None, None)
    shared_halves.fit(alone)
    strategy = make(
        consistency=tfps.Sync(),
        communication=tfps.CommunicationOptions(fusion=fusion),
    )
    with strategy.scope():
        model = shared_halves.halves(_FIRST, _SECOND)
    shared_halves.fit(model)
    for mine, theirs in zip(
        model.get_weights(), alone.get_weights(), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    x, y = shared_halves.FEATURES, shared_halves.TARGETS
    np.testing.assert_allclose(
        model.predict(x, verbose=0), alone.predict(x, verbose=0), rtol=1e-3
    )
    np.testing.assert_allclose(
        model.evaluate(x, y, verbose=0),
        alone.evaluate(x, y, verbose=0),
        rtol=1e-4,
    )


def test_only_activations_and_their_gradients_cross(make: Make) -> None:
    strategy = make()
    with strategy.scope():
        model = shared_halves.halves(_FIRST, _SECOND)
    shared_halves.fit(model, epochs=1)
    (body, *_) = strategy.explain(model, print_fn=None).bodies
    first, second = (f"/job:worker/replica:0/task:{i}" for i in range(2))
    between = [
        (sent.source, sent.destination, sent.num_tensors, sent.num_parcels)
        for sent in body.sent
        if {sent.source, sent.destination} == {first, second}
    ]
    assert between == [(first, second, 1, 1), (second, first, 1, 1)]
    # Each half reads its own weights, and sends its own gradients.
    for half in (first, second):
        others = {
            place
            for sent in body.sent
            for place in (sent.source, sent.destination)
            if half in (sent.source, sent.destination)
        }
        assert {each for each in others if "ps" in each}
    gradients = [
        sent
        for sent in body.sent
        if sent.source == "" and sent.destination.startswith("/job:ps")
    ]
    assert all(sent.num_bytes <= 16 for sent in gradients)


def test_a_scheduled_function_computes_there_and_gradients_are_right(
    make: Make,
) -> None:
    strategy = make()
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        w = tf.Variable([[1.0, 2.0], [3.0, 4.0]])

    @tf.function
    def function(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            with tf.device(_SECOND):
                y = tf.tanh(tf.matmul(x, w))
            loss = tf.reduce_sum(y * y)
        return loss, tape.gradient(loss, w)

    x = tf.constant([[0.1, 0.2]])
    results = [coordinator.schedule(function, args=(x,)) for _ in range(8)]
    coordinator.join()
    with tf.GradientTape() as tape:
        v = tf.constant(w.numpy())
        tape.watch(v)
        loss = tf.reduce_sum(tf.tanh(tf.matmul(x, v)) ** 2)
    expected = tape.gradient(loss, v).numpy()
    for result in results:
        mine, gradient = result.fetch()
        np.testing.assert_allclose(mine, loss, rtol=1e-6)
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)
    with strategy.scope(), tf.device(None):
        graph = function.get_concrete_function(x).graph
    (backward,) = [
        each.device
        for each in graph.get_operations()
        if each.type == "TanhGrad"
    ]
    assert "/job:worker/task:1" in backward.replace("/replica:0", "")


def test_layers_of_many_kinds_work_on_another_worker(make: Make) -> None:
    class Model(keras.Model):
        def __init__(self, device: str | None) -> None:
            super().__init__()
            self.device = device
            self.table = keras.layers.Embedding(10, 4)
            self.rnn = keras.layers.LSTM(4)
            self.out = keras.layers.Dense(1)

        def build(self, input_shape: Any) -> None:
            self.table.build()
            self.rnn.build((None, 3, 4))
            self.out.build((None, 4))
            self.built = True

        def call(self, ids: tf.Tensor) -> tf.Tensor:
            with tf.device(self.device):
                rows = self.table(ids)
                return self.out(self.rnn(rows + 0.1 * rows**2))

    def trained(device: str | None) -> list[np.ndarray]:
        keras.utils.set_random_seed(2)
        model = Model(device)
        model.build((None, 3))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        ids = np.arange(96).reshape(32, 3) * 7 % 10
        model.fit(ids, np.sin(ids.sum(1)), shuffle=False, verbose=0)
        return model.get_weights()

    alone = trained(None)
    with make(consistency=tfps.Sync()).scope():
        there = trained(_SECOND)
    for mine, theirs in zip(there, alone, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("/job:worker/task:7", "there is no worker 7"),
        ("/job:ps/task:2", "there is no ps 2"),
        ("/job:trainer/task:0", "there is no job 'trainer'"),
        ("/job:worker", "it names no worker"),
        ("/task:1", "task 1 is of no job"),
    ],
)
def test_a_task_that_does_not_exist_is_refused_before_anything_runs(
    make: Make, device: str, reason: str
) -> None:
    coordinator = tfps.ClusterCoordinator(make())

    @tf.function
    def function(x: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            return tf.square(x)

    with pytest.raises(errors.PlacementError, match=reason):
        coordinator.schedule(function, args=(tf.constant(2.0),))
    coordinator.join()


def test_a_result_on_the_chief_is_refused_and_its_copy_is_fetched(
    make: Make,
) -> None:
    coordinator = tfps.ClusterCoordinator(make())

    @tf.function
    def on_the_chief(x: tf.Tensor) -> Any:
        with tf.device("/job:chief/task:0"):
            doubled = 2.0 * x
        with tf.device("/job:ps/task:0"):
            return doubled, tf.identity(doubled)

    result = coordinator.schedule(on_the_chief, args=(tf.constant([3.0]),))
    there, copied = result.get()
    assert "job:chief" in there.device
    np.testing.assert_array_equal(copied.numpy(), [6.0])
    with pytest.raises(errors.PlacementError, match=r"on the chief.*identity"):
        result.fetch()
