"""Tests that slow workers are found, and get less to do."""

import threading
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import events
from tfps_plugin.coordinator.stragglers import windows

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=1)

_DELAY_SECONDS = 0.1
_STEPS = 20
# Far more than it takes to find a slow worker.
_MOST_EPOCHS = 60
_NUM_SPLITS = 12
_BATCHES_OF_A_SPLIT = 3


@pytest.fixture(autouse=True)
def little_says_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "_LEAST_SECONDS", 0.2)


class _Job:
    """A strategy, and the slow workers that it reports."""

    def __init__(
        self, cluster: tfps.LocalCluster, consistency: Any = None
    ) -> None:
        self.strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            consistency=consistency,
            scheduling=tfps.SchedulingOptions(
                max_closures_in_flight_per_worker=1, steps_per_closure=4
            ),
        )
        self.coordinator = tfps.ClusterCoordinator(self.strategy)
        self.slow: list[events.WorkerSlow] = []
        self.is_reported = threading.Event()
        self.coordinator.events.subscribe(self._note)

    def _note(self, event: events.Event) -> None:
        if isinstance(event, events.WorkerSlow):
            self.slow.append(event)
            self.is_reported.set()

    def fit(self, model: keras.Model, dataset_fn: Callable[..., Any]) -> None:
        """Trains until a worker is reported."""

        class Stop(keras.callbacks.Callback):
            def on_epoch_end(_, epoch: int, logs: Any = None) -> None:
                model.stop_training = self.is_reported.is_set()

        model.fit(
            tfps.DatasetCreator(dataset_fn),
            epochs=_MOST_EPOCHS,
            steps_per_epoch=_STEPS,
            callbacks=[Stop()],
            verbose=0,
        )
        assert self.is_reported.wait(60.0)


@pytest.fixture
def job(cluster: tfps.LocalCluster) -> Any:
    made = _Job(cluster)
    yield made
    made.coordinator.close()


def _busy(seconds: tf.Tensor) -> tf.Tensor:
    """Returns zero after so many seconds, however busy the machine is."""
    until = tf.timestamp() + tf.cast(seconds, tf.float64)
    rounds = tf.while_loop(
        lambda _: tf.timestamp() < until, lambda n: [n + 1], [tf.constant(0)]
    )
    return 0.0 * tf.cast(rounds[0], tf.float32)


class _Delay(keras.layers.Layer):
    """Takes as many seconds as its input says, and returns zeros."""

    def call(self, seconds: Any) -> Any:
        return tf.fill(tf.shape(seconds), _busy(tf.reduce_max(seconds)))

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


def _model(strategy: tfps.ParameterServerStrategy) -> keras.Model:
    with strategy.scope():
        seconds = keras.Input((1,))
        outputs = keras.layers.Dense(1)(_Delay()(seconds))
        model = keras.Model(seconds, outputs, name="delays")
        model.compile("sgd", "mse")
    return model


def _delays(seconds: float) -> tf.data.Dataset:
    """Returns batches that make steps take so long."""
    element = (tf.constant([[seconds]]), tf.constant([[1.0]]))
    return tf.data.Dataset.from_tensors(element).repeat()


def _is_slow(context: tf.distribute.InputContext) -> bool:
    return context.input_pipeline_id == 1


def _slow_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Returns batches that one worker makes slowly."""

    def wait(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return x + _busy(tf.constant(_DELAY_SECONDS)), y

    dataset = _delays(0.0)
    return dataset.map(wait) if _is_slow(context) else dataset


def test_a_worker_with_slow_input_is_reported(job: _Job) -> None:
    job.fit(_model(job.strategy), _slow_input)
    (event,) = job.slow
    assert event.worker_index == 1
    assert event.slow_at == "input"
    # The pipeline goes on between calls.
    assert event.steps_per_second < 2 / _DELAY_SECONDS
    assert event.median_steps_per_second > 2 * event.steps_per_second
    fast, slow = job.coordinator.worker_rates()
    assert fast.work == slow.work == "fit of delays"
    assert fast.input_share is not None
    assert slow.input_share is not None
    assert fast.input_share < 0.5 < slow.input_share
    assert slow.seconds_per_step > _DELAY_SECONDS / 2
    # The other one makes several steps meanwhile.
    assert slow.expected_staleness is not None
    assert fast.expected_staleness is not None
    assert slow.expected_staleness > 2 > fast.expected_staleness > 0


@pytest.mark.parametrize(
    "consistency", [tfps.Sync(), tfps.BoundedStaleness(2)], ids=repr
)
def test_slow_input_that_others_wait_for_is_reported(
    cluster: tfps.LocalCluster, consistency: Any
) -> None:
    job = _Job(cluster, consistency)
    job.fit(_model(job.strategy), _slow_input)
    (event,) = job.slow
    assert event.worker_index == 1
    assert event.slow_at == "input"
    assert event.is_waited_for
    assert event.median_steps_per_second > 2 * event.steps_per_second
    fast, slow = job.coordinator.worker_rates()
    assert fast.input_share is not None
    assert slow.input_share is not None
    assert fast.input_share < 0.5 < slow.input_share
    assert slow.expected_staleness is None
    job.coordinator.close()


def test_a_worker_with_slow_steps_is_reported(job: _Job) -> None:
    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return _delays(_DELAY_SECONDS if _is_slow(context) else 0.0)

    job.fit(_model(job.strategy), dataset_fn)
    (event,) = job.slow
    assert event.worker_index == 1
    assert event.slow_at == "compute"
    _, slow = job.coordinator.worker_rates()
    assert slow.input_share is not None
    assert slow.input_share < 0.5
    assert slow.num_retries == 0


def test_a_slow_worker_is_found_in_a_loop_of_ones_own(job: _Job) -> None:
    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return _delays(_DELAY_SECONDS if _is_slow(context) else 0.001)

    iterator = iter(job.coordinator.create_per_worker_dataset(dataset_fn))

    @tf.function
    def my_step(iterator: Any) -> tf.Tensor:
        seconds, _ = next(iterator)
        return _busy(tf.reduce_max(seconds))

    for _ in range(_MOST_EPOCHS):
        for _ in range(_STEPS):
            job.coordinator.schedule(my_step, args=(iterator,))
        job.coordinator.join()
        if job.is_reported.is_set():
            break
    assert job.is_reported.wait(60.0)
    (event,) = job.slow
    assert event.worker_index == 1
    assert event.slow_at == "compute"
    assert [rate.work for rate in job.coordinator.worker_rates()] == [
        "my_step",
        "my_step",
    ]


def test_equal_workers_are_not_reported(job: _Job) -> None:
    model = _model(job.strategy)
    model.fit(
        tfps.DatasetCreator(lambda context: _delays(_DELAY_SECONDS)),
        steps_per_epoch=3 * _STEPS,
        verbose=0,
    )
    assert len(job.coordinator.worker_rates()) == 2
    # Also none whose report is still on its way.
    assert not job.coordinator._pool.watch._reported


def test_a_slow_worker_reads_fewer_splits(
    job: _Job, cluster: tfps.LocalCluster
) -> None:
    slow = str(cluster.process("worker", 1).pid)

    def dataset_fn(split: tf.Tensor) -> tf.data.Dataset:
        # The process that reads it.
        process = tf.data.TextLineDataset("/proc/self/stat").map(
            lambda line: tf.strings.split(line)[0]
        )

        def element(process: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            is_slow = tf.cast(process == slow, tf.int64)
            delay = _busy(_DELAY_SECONDS * tf.cast(is_slow, tf.float32))
            return 2 * split + is_slow + tf.cast(delay, tf.int64), split

        return process.repeat(_BATCHES_OF_A_SPLIT).map(element).batch(1)

    with job.strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((), dtype="int64"),
                keras.layers.Embedding(2 * _NUM_SPLITS, 1, "zeros"),
            ]
        )
        # The row of a split and a worker grows by 1 with each step.
        model.compile(
            keras.optimizers.SGD(1.0),
            lambda _, prediction: -prediction[:, 0],
        )
    model.fit(
        tfps.DatasetCreator(dataset_fn, splits=list(range(_NUM_SPLITS))),
        verbose=0,
    )
    (table,) = model.get_weights()
    by_split = table.reshape(_NUM_SPLITS, 2)
    assert by_split.sum(1).tolist() == [_BATCHES_OF_A_SPLIT] * _NUM_SPLITS
    fast, slow_sum = by_split.sum(0)
    assert 0 < slow_sum < fast
