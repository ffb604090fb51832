"""Tests of models whose own train_step has to build them."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = [
    pytest.mark.cluster(num_workers=1, num_ps=2),
    pytest.mark.sample(cases=3, group="own_steps"),
]

_STEPS, _BATCH = 6, 8
_random = np.random.default_rng(11)
_X = _random.normal(size=(_STEPS * _BATCH, 3)).astype("float32")
_Y = _X.sum(axis=1, keepdims=True)


class Unbuilt(keras.Model):
    """A linear model that knows its shapes when its step has run."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, inputs: Any) -> Any:
        return self.layer(inputs)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(2 * x) - y) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def _fitted(model: keras.Model) -> list[np.ndarray]:
    model.compile(keras.optimizers.SGD(0.05))
    model.fit(_X, _Y, batch_size=_BATCH, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize(
    "consistency",
    [
        tfps.Async(),
        tfps.Async(local_steps=3),
        tfps.BoundedStaleness(0),
        tfps.Sync(),
    ],
    ids=str,
)
def test_the_first_step_builds_the_model(
    cluster: tfps.LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
    consistency: Any,
) -> None:
    # Calls with batches of the chief follow one another.
    monkeypatch.setattr(
        "tfps_plugin.training.steps.epoch.chief_read_run.ChiefReadRun"
        "._most_closures_in_flight",
        1,
    )
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        consistency=consistency,
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
    )
    try:
        with strategy.scope():
            model = Unbuilt()
        weights = _fitted(model)
    finally:
        tfps.ClusterCoordinator(strategy).close()
    # All weights are dense: with SGD and one worker, all of them make the
    # steps of one process.
    for weight, expected in zip(weights, _fitted(Unbuilt()), strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-5)
