"""Tests of variables that the program places by `tf.device`."""

import logging
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_IDS = np.arange(64) % 10
_TARGETS = np.sin(_IDS).astype(np.float32)


class Halves(keras.layers.Layer):
    """Two weights, on a parameter server each; only `build` names them."""

    def build(self, input_shape: Any) -> None:
        for ps in (1, 0):
            with tf.device(f"/job:ps/task:{ps}"):
                self.add_weight(shape=(input_shape[-1],), name=f"w{ps}")
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        first, second = self.weights
        return x * first + second


def _model(ps: str | None, optimizer: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    with tf.device(ps):
        model = keras.Sequential(
            [
                keras.Input((), dtype="int32"),
                keras.layers.Embedding(10, 4),
                keras.layers.Dense(4, "tanh"),
                keras.layers.Dropout(0.0),
                keras.layers.Dense(1),
            ]
        )
        model.compile(optimizer, "mse", metrics=["mae"])
    return model


def _ps_of(variables: Any) -> set[str]:
    return {v.value.device.split("/task:")[1][0] for v in variables}


def _on_ps(variables: Any) -> list[Any]:
    return [v for v in variables if "/job:ps/" in v.value.device]


_OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(
        0.01, use_ema=True, gradient_accumulation_steps=2
    ),
    "Adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "LossScale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.01, momentum=0.9), initial_scale=4.0
    ),
}


Make = Callable[..., tfps.ParameterServerStrategy]


@pytest.fixture
def make(cluster: tfps.LocalCluster) -> Iterator[Make]:
    made = []

    def make(*args: Any, **options: Any) -> tfps.ParameterServerStrategy:
        made.append(
            tfps.ParameterServerStrategy(
                cluster.cluster_resolver, *args, **options
            )
        )
        return made[-1]

    yield make
    for strategy in made:
        tfps.ClusterCoordinator(strategy).close()


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_a_model_and_its_optimizer_are_on_the_ps_that_is_named(
    make: Make, name: str
) -> None:
    strategy = make()
    with strategy.scope():
        model = _model("/job:ps/task:1", _OPTIMIZERS[name]())
    # The optimizer makes its slots here, under no device.
    model.fit(_IDS, _TARGETS, batch_size=8, shuffle=False, verbose=0)
    assert _ps_of(model.trainable_variables) == {"1"}
    slots = [v for v in _on_ps(model.optimizer.variables) if len(v.shape)]
    assert len(slots) >= len(model.trainable_variables)
    assert _ps_of(slots) == {"1"}


def test_it_trains_as_in_one_process(make: Make) -> None:
    alone = _model(None, "adam")
    alone.fit(_IDS, _TARGETS, batch_size=8, shuffle=False, verbose=0)
    strategy = make(consistency=tfps.Sync())
    with strategy.scope():
        model = _model("/job:ps/task:1", "adam")
    model.fit(_IDS, _TARGETS, batch_size=8, shuffle=False, verbose=0)
    for mine, theirs in zip(
        model.get_weights(), alone.get_weights(), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_layers_and_modules_name_a_ps_for_each_variable(
    make: Make,
) -> None:
    strategy = make()

    class Module(tf.Module):
        def __init__(self) -> None:
            with tf.device("/job:ps/replica:0/task:1/device:CPU:0"):
                self.one = tf.Variable(tf.ones([1000]))
            self.free = tf.Variable(0.0)

    with strategy.scope():
        module = Module()
        layer = Halves()
        # Built while a function is traced, as by the first call of a step.
        traced = tf.function(layer)
        with tf.device(None):
            traced.get_concrete_function(tf.TensorSpec([None, 3]))
    assert "task:1" in module.one.device
    assert "task:0" in module.free.device
    assert [_ps_of([v]) for v in layer.weights] == [{"1"}, {"0"}]
    assert strategy.bytes_per_ps == (4 + 12, 4000 + 12)


def test_a_table_is_whole_on_the_ps_that_is_named(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = make(tfps.partitioners.FixedShardsPartitioner(2))
    with strategy.scope(), caplog.at_level(logging.INFO):
        with tf.device("/job:ps/task:1"):
            table = keras.layers.Embedding(10, 4, name="table")
            table.build()
            dropout = keras.layers.Dropout(0.5)
        with tf.device("/job:ps"):
            cut = keras.layers.Embedding(10, 4)
            cut.build()
    value = table.embeddings.value
    assert not isinstance(value, tfps.ShardedVariable)
    assert "task:1" in value.device
    assert isinstance(cut.embeddings.value, tfps.ShardedVariable)
    assert "/job:ps" not in dropout.seed_generator.state.value.device
    assert any("stay with the workers" in text for text in caplog.messages)


def test_a_table_that_is_not_cut_is_warned_about(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = make(tfps.partitioners.FixedShardsPartitioner(2))
    with strategy.scope():
        with tf.device("/job:ps/task:1"):
            for name in ("users", "items"):
                keras.layers.Embedding(10, 4, name=name).build()
        # They are to be whole: nobody is told.
        meant = keras.layers.Dense(4)
        with tfps.on_ps(meant):
            meant.build((None, 4))
        keras.layers.Embedding(10, 4).build()
    told = [r for r in caplog.records if "variable_partitioner" in r.msg]
    assert {record.levelno for record in told} == {logging.WARNING}
    assert [record.getMessage().split("'")[1] for record in told] == [
        "users/embeddings",
        "items/embeddings",
    ]
    assert "is whole on parameter server 1" in told[0].getMessage()


def test_a_device_that_holds_no_variables_is_refused(
    make: Make,
) -> None:
    strategy = make()
    with strategy.scope():
        for device, reason in {
            "/job:ps/task:7": "no parameter server 7",
            "/job:worker/task:1": "workers hold no variables",
            "/job:chief/task:0": "the chief holds no variables",
            "/job:ps/task:1/GPU:0": "not on GPU:0",
        }.items():
            with (
                pytest.raises(
                    errors.VariableCreationError,
                    match=f"'wide/kernel' cannot.*{reason}",
                ),
                tf.device(device),
            ):
                keras.layers.Dense(2, name="wide").build((None, 3))
        with tf.device("/CPU:0"):
            assert tf.Variable(1.0).numpy() == 1.0
