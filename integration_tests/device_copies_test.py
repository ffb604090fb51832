"""Tests of batches that are copied to devices while the step before computes.

CPU:1 of a worker stands for an accelerator. The tests wait on no clock: a step
cannot end before the next batch has arrived there.
"""

import threading
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_mixed
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.strategy.replicas import device_copies
from tfps_plugin.strategy.replicas import worker_devices
from tfps_plugin.training.steps.traced import rounds
from tfps_plugin.training.steps.tuning import packing

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2, logical_cpus=2)

_CPU = "/device:CPU:0"
_ACCELERATOR = "/device:CPU:1"
_WIDTH = 3
_NUM_BATCHES = 6
_BATCH = 4
_SECONDS = 60.0


class Arrivals:
    """Queue of a worker with an element for each batch on its accelerator."""

    def __init__(self) -> None:
        self._name = f"arrivals_{uuid.uuid4().hex}"

    def add(self, copy: tf.Tensor) -> tf.Tensor:
        """Returns a copy of a batch, which has been counted if it has rows."""
        with tf.device(_CPU):
            number = tf.minimum(tf.shape(copy)[0], 1)
            added = tf.raw_ops.QueueEnqueueManyV2(
                handle=self._queue(), components=[tf.zeros([number])]
            )
        with tf.control_dependencies([added]), tf.device(_ACCELERATOR):
            return tf.identity(copy)

    def after(self, number: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        """Returns a value once so many more batches have arrived."""
        with tf.device(_CPU):
            arrived = tf.raw_ops.QueueDequeueManyV2(
                handle=self._queue(), n=number, component_types=[tf.float32]
            )
        with tf.control_dependencies(arrived):
            return tf.identity(value)

    def end(self, worker: str) -> None:
        """Makes all that waits fail."""
        with tf.device(worker):
            tf.raw_ops.QueueCloseV2(
                handle=self._queue(), cancel_pending_enqueues=True
            )

    def _queue(self) -> tf.Tensor:
        return tf.raw_ops.FIFOQueueV2(
            component_types=[tf.float32], shapes=[[]], shared_name=self._name
        )


class OnAccelerator(keras.layers.Layer):
    """Waits on the accelerator until the next batch has arrived there, too."""

    def __init__(self, arrivals: Arrivals) -> None:
        super().__init__()
        self._arrivals = arrivals
        self._dense = keras.layers.Dense(1)

    def build(self, shape: Any) -> None:
        self._dense.build(shape)

    def call(self, x: Any) -> Any:
        context = tf.distribute.get_replica_context()
        # There is none while Keras builds the model.
        if context is None:
            return self._dense(x)
        devices = context.strategy.replica_devices
        index = tf.get_static_value(context.replica_id_in_sync_group)
        if len(devices) > 1 and devices[int(index)] != _ACCELERATOR:
            return self._dense(x)
        with tf.device(_ACCELERATOR):
            number = tf.cast(x[0, 0], tf.int32)
            to_come = tf.where(number == 0, 2, 1)
            to_come -= tf.cast(number == _NUM_BATCHES - 1, tf.int32)
            return self._dense(self._arrivals.after(to_come, x))


def _data() -> tuple[np.ndarray, np.ndarray]:
    """Returns batches whose rows all hold the number of the batch."""
    numbers = np.repeat(np.arange(_NUM_BATCHES, dtype="float32"), _BATCH)
    return np.tile(numbers[:, None], _WIDTH), numbers[:, None] / _NUM_BATCHES


def _dataset(context: Any = None) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(_data()).batch(_BATCH)


@pytest.fixture
def strategy_of(
    cluster: tfps.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tfps.ParameterServerStrategy]]:
    """Yields a function that makes a strategy, which ends with the test.

    With one replica, TensorFlow would choose a GPU; the layers of these tests
    choose the accelerator themselves.
    """
    made = []

    def make(replicas: int, **options: Any) -> tfps.ParameterServerStrategy:
        if replicas == 1:
            monkeypatch.setattr(
                worker_devices, "for_copies", lambda *_: (_ACCELERATOR,)
            )
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            replicas_per_worker=replicas,
            scheduling=tfps.SchedulingOptions(
                max_closures_in_flight_per_worker=1
            ),
            **options,
        )
        made.append(strategy)
        return strategy

    yield make
    for strategy in made:
        tfps.ClusterCoordinator(strategy).close()


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> Arrivals:
    """Returns the arrivals of inputs; targets do not count."""
    arrivals = Arrivals()
    copied = device_copies.on_device

    def on_device(value: tf.Tensor, device: str) -> tf.Tensor:
        copy = copied(value, device)
        is_input = copy.shape.rank == 2 and copy.shape[1] == _WIDTH
        if device != _ACCELERATOR or not is_input:
            return copy
        return arrivals.add(copy)

    monkeypatch.setattr(device_copies, "on_device", on_device)
    return arrivals


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    ("method", "consistency"),
    [
        ("fit", tfps.Async()),
        ("fit", tfps.Async(local_steps=3)),
        ("fit", tfps.Sync()),
        ("fit", tfps.BoundedStaleness(max_staleness=1)),
        ("fit of arrays", tfps.Async()),
        ("fit of arrays", tfps.Async(local_steps=3)),
        ("fit of arrays", tfps.Sync()),
        ("evaluate", tfps.Async()),
        ("predict", tfps.Async()),
    ],
    ids=str,
)
def test_the_next_batch_arrives_before_a_step_ends(
    strategy_of: Any,
    arrivals: Arrivals,
    method: str,
    consistency: Any,
    replicas: int,
) -> None:
    strategy = strategy_of(replicas, consistency=consistency)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input([_WIDTH]), OnAccelerator(arrivals)]
        )
        model.compile("sgd", "mse", steps_per_execution=_NUM_BATCHES)
    x, y = _data()
    creator = tfps.DatasetCreator(_dataset)
    deadline = threading.Timer(
        _SECONDS, arrivals.end, [strategy.worker_devices[0]]
    )
    deadline.start()
    try:
        if method == "fit":
            model.fit(creator, steps_per_epoch=_NUM_BATCHES, verbose=0)
        elif method == "fit of arrays":
            model.fit(x, y, batch_size=_BATCH, shuffle=False, verbose=0)
        elif method == "evaluate":
            model.evaluate(creator, steps=_NUM_BATCHES, verbose=0)
        else:
            model.predict(x, batch_size=_BATCH, verbose=0)
    finally:
        deadline.cancel()
        deadline.join()


class DenseOnAccelerator(keras.layers.Dense):
    """Computes on the accelerator."""

    def call(self, x: Any, training: Any = None) -> Any:
        with tf.device(_ACCELERATOR):
            return super().call(x, training)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("input_ends", [True, False])
def test_training_has_the_numbers_of_one_process(
    strategy_of: Any,
    monkeypatch: pytest.MonkeyPatch,
    input_ends: bool,
    replicas: int,
) -> None:
    """Also where a round makes several steps, and calls end with the input."""
    monkeypatch.setattr(packing, "_NUMBERS", (1, 2, 5, 10))
    monkeypatch.setattr(rounds, "_STEPS_BEFORE", 20)
    monkeypatch.setattr(rounds, "_STEPS_OF_A_CALL", 2)

    def dataset_fn(context: Any = None) -> tf.data.Dataset:
        data = shared_mixed.batches()
        return data if input_ends else data.repeat()

    steps = {} if input_ends else {"steps_per_epoch": 53}
    strategy = strategy_of(replicas)
    # With several replicas, each computes on its own device anyway.
    dense = keras.layers.Dense if replicas > 1 else DenseOnAccelerator
    with strategy.scope():
        model = shared_mixed.compiled(shared_mixed.new_model(dense))
    expected = shared_mixed.compiled(shared_mixed.new_model())
    expected.set_weights(model.get_weights())
    logs = model.fit(
        tfps.DatasetCreator(dataset_fn), epochs=2, verbose=0, **steps
    ).history
    expected_logs = expected.fit(
        dataset_fn(), epochs=2, verbose=0, shuffle=False, **steps
    ).history
    if not input_ends:
        assert "rounds_of" in str(strategy.explain(model, print_fn=None))
    for name, values in expected_logs.items():
        np.testing.assert_allclose(logs[name], values, rtol=2e-4)
    for mine, theirs in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_allclose(
            mine.numpy(), theirs.numpy(), rtol=1e-3, atol=1e-5
        )
    batches = shared_mixed.batches()
    np.testing.assert_allclose(
        model.predict(batches, verbose=0),
        expected.predict(batches, verbose=0),
        rtol=1e-3,
        atol=1e-5,
    )
