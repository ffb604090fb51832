"""Tests of layers that compute on the parameter server of their weights."""

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import wide_output
from wide_output import OutputOnPs

import tfps_plugin as tfps
from tfps_plugin import errors

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_TIMEOUT_SECONDS = 120.0
# Kernel and bias of the output layer.
_OUTPUT_BYTES = 4 * (32 + 1) * wide_output.NUM_CLASSES

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


def _fitted(output: Any, optimizer: Any) -> tuple[keras.Model, list[float]]:
    keras.utils.set_random_seed(1)
    model = wide_output.compiled(output(wide_output.NUM_CLASSES), optimizer())
    x, y = wide_output.FEATURES, wide_output.CLASSES
    losses = model.fit(
        x, y, batch_size=16, epochs=2, shuffle=False, verbose=0
    ).history["loss"]
    return model, [*losses, *model.evaluate(x, y, verbose=0)]


@pytest.mark.parametrize("clips", [False, True])
def test_it_trains_as_in_one_process(make: Make, clips: bool) -> None:
    def optimizer() -> Any:
        return keras.optimizers.Adam(
            0.01, global_clipnorm=0.1 if clips else None
        )

    alone, numbers = _fitted(keras.layers.Dense, optimizer)
    strategy = make(consistency=tfps.Sync())
    with strategy.scope():
        model, ours = _fitted(OutputOnPs, optimizer)
    np.testing.assert_allclose(ours, numbers, rtol=1e-4)
    for mine, theirs in zip(
        model.get_weights(), alone.get_weights(), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"consistency": tfps.Sync()},
        {"communication": tfps.CommunicationOptions(wire_dtype="bfloat16")},
    ],
)
def test_neither_weights_nor_logits_nor_their_gradients_travel(
    make: Make, options: dict[str, Any]
) -> None:
    strategy = make(
        tfps.partitioners.MinSizePartitioner(1 << 10, max_shards=2), **options
    )
    with strategy.scope():
        model, _ = _fitted(OutputOnPs, keras.optimizers.SGD)
    homes = {v.value.device for v in model.layers[-1].weights}
    assert len(homes) == 1
    explanation = strategy.explain(model, print_fn=None)
    num_bytes = sum(
        sent.num_bytes for body in explanation.bodies for sent in body.sent
    )
    assert num_bytes < _OUTPUT_BYTES / 4
    # Logits of unknown numbers of examples have no size in advance.
    rows = [
        sent.num_unsized for body in explanation.bodies for sent in body.sent
    ]
    with strategy.scope():
        plain, _ = _fitted(keras.layers.Dense, keras.optimizers.SGD)
    before = strategy.explain(plain, print_fn=None)
    assert (
        sum(sent.num_bytes for body in before.bodies for sent in body.sent)
        > 2 * _OUTPUT_BYTES
    )
    assert sum(rows) <= 6


def test_its_file_opens_in_a_plain_process(
    make: Make, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "model.keras"
    with make().scope():
        model, _ = _fitted(OutputOnPs, keras.optimizers.SGD)
        logits = model.predict(wide_output.FEATURES, verbose=0)
        model.save(path)
    ended = subprocess.run(
        [sys.executable, wide_output.__file__, str(path)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "CUDA_VISIBLE_DEVICES": "-1",
        },
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = float(ended.stdout.split("logits ")[1])
    assert found == pytest.approx(float(np.sum(np.abs(logits))), rel=1e-4)


def test_a_layer_of_a_model_that_keras_builds_is_where_tf_device_says(
    make: Make,
) -> None:
    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [keras.layers.Dense(3) for _ in range(3)]

        def call(self, x: tf.Tensor) -> tf.Tensor:
            for ps, part in zip((1, 0, 1), self.parts, strict=True):
                with tf.device(f"/job:ps/task:{ps}"):
                    x = part(x)
            return x

    with make().scope():
        model = Model()
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 2)), np.ones((8, 3)), verbose=0)
    tasks = [
        {weight.value.device.split("task:")[1][0] for weight in part.weights}
        for part in model.parts
    ]
    assert tasks == [{"1"}, {"0"}, {"1"}]


def test_what_cannot_compute_there_is_refused(make: Make) -> None:
    with make().scope():
        layers = []
        for ps in range(2):
            with tf.device(f"/job:ps/task:{ps}"):
                layers.append(tf.Variable(tf.zeros([2]), name=f"v{ps}"))
        with (
            pytest.raises(errors.PlacementError, match="on several param"),
            tfps.on_ps(layers),
        ):
            pass
        with tfps.on_ps(layers[1]):
            assert "/job:ps/replica:0/task:1" in tf.add(1.0, 1.0).device
    with make(tfps.partitioners.FixedShardsPartitioner(2)).scope():
        cut = keras.layers.Dense(3, name="cut")
        cut.build((None, 4))
        with (
            pytest.raises(errors.PlacementError, match="cut into 2 shards"),
            tfps.on_ps(cut),
        ):
            pass
    strategy = make(consistency=tfps.Async(local_steps=2))
    with (
        strategy.scope(),
        pytest.raises(errors.UnsupportedError, match="local_steps=1"),
    ):
        _fitted(OutputOnPs, keras.optimizers.SGD)
