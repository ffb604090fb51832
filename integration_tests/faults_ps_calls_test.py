"""Tests of parameter servers that die in `evaluate` and `predict`.

Other tests have damaged files, or a function that hangs.
"""

import os
import pathlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_damage
import shared_training
import tensorflow as tf
from shared_training import At
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.monitoring import events
from tfps_plugin.recovery.checkpoints import shared_folder
from tfps_plugin.variables.updates.remote_queues import RemoteQueues

pytestmark = pytest.mark.sample(cases=2, group="faults_ps_calls")

_ROWS = 400
_STEPS = 96
_BATCH = 8
# A ps hangs for that long at most.
_RESCUE_SECONDS = 20
_NUM_TURNS, _TURN_SECONDS = 20, 0.05
_NUM_THREADS, _NUM_CONSTANTS = 4, 200
_IDS, _TARGETS = shared_training.ids_and_targets(_ROWS, _STEPS * _BATCH)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        yield cluster


class _Training:
    """A trained model, its checkpoints, and the events since."""

    def __init__(
        self, cluster: tfps.LocalCluster, folder: pathlib.Path
    ) -> None:
        self.cluster = cluster
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
        )
        self.coordinator = tfps.ClusterCoordinator(strategy)
        keras.utils.set_random_seed(1)
        with strategy.scope():
            self.model = keras.Sequential(
                [
                    keras.Input((4,), dtype="int32"),
                    keras.layers.Embedding(_ROWS, 8),
                    keras.layers.Flatten(),
                    keras.layers.Dense(1),
                ]
            )
            self.model.compile(
                keras.optimizers.Adam(0.01), "mse", metrics=["mae"]
            )
        self.manager = tfps.CheckpointManager(
            tfps.Checkpoint(model=self.model), folder
        )
        self.losses = self.fit()
        self.manager.save()
        self.manager.sync()
        self.seen = Seen(self.coordinator)

    def fit(self, *callbacks: Any) -> list[float]:
        losses: list[float] = self.model.fit(
            _IDS,
            _TARGETS,
            batch_size=_BATCH,
            verbose=0,
            callbacks=list(callbacks),
        ).history["loss"]
        return losses

    def restart_ps(self, index: int) -> None:
        self.cluster.kill("ps", index)
        self.cluster.start("ps", index)


@pytest.fixture
def training(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path
) -> Iterator[_Training]:
    training = _Training(cluster, tmp_path)
    yield training
    training.coordinator.close()
    cluster.wait_until_ready()


def _evaluate(model: keras.Model, *callbacks: Any) -> Any:
    return model.evaluate(
        _IDS,
        _TARGETS,
        batch_size=_BATCH,
        verbose=0,
        callbacks=list(callbacks),
    )


def _predict(model: keras.Model, *callbacks: Any) -> Any:
    return model.predict(
        _IDS, batch_size=_BATCH, verbose=0, callbacks=list(callbacks)
    )


@pytest.mark.parametrize("call", [_evaluate, _predict])
def test_what_is_computed_while_a_ps_is_lost_is_the_same(
    training: _Training, call: Callable[..., Any]
) -> None:
    model = training.model
    expected = call(model)
    found = call(model, At({20: lambda: training.restart_ps(1)}))
    # The checkpoint has the weights that were lost.
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert training.seen.recovered() == [1]
    assert int(model.optimizer.iterations) == _STEPS
    history = {"loss": training.losses + training.fit()}
    shared_training.assert_went_on(model, history, 2 * _STEPS)


def _queue(name: str) -> tf.Tensor:
    return tf.raw_ops.FIFOQueueV2(
        component_types=[tf.float32], shared_name=name
    )


def _wait_until_one_has(task_devices: list[str], name: str) -> None:
    """Waits until any task's queue of that name has an element."""
    deadline = time.monotonic() + 60
    sizes: list[int] = []
    while not any(sizes):
        assert time.monotonic() < deadline, f"nothing in {name!r}"
        sizes = []
        for device in task_devices:
            with tf.device(device):
                size = tf.raw_ops.QueueSizeV2(handle=_queue(name))
            sizes.append(int(size))


def test_a_function_that_never_ends_after_the_loss_of_a_ps(
    training: _Training,
) -> None:
    # TensorFlow leaves functions hanging in a race that no test can arrange.
    # Here, a function waits for an element that comes only before its next run.
    table = training.model.layers[0].embeddings.value

    @tf.function
    def hang() -> tf.Tensor:
        rows = tf.gather(table, [0, _ROWS - 1])
        begun = tf.raw_ops.QueueEnqueueV2(
            handle=_queue("begun"), components=[tf.reduce_sum(rows)]
        )
        with tf.control_dependencies([begun]):
            (never,) = tf.raw_ops.QueueDequeueV2(
                handle=_queue("never"), component_types=[tf.float32]
            )
        return never

    result = training.coordinator.schedule(hang)
    workers = [
        f"{task.name}/device:CPU:0"
        for task in training.cluster.cluster_spec.workers
    ]
    _wait_until_one_has(workers, "begun")
    training.restart_ps(1)
    # The chief's read notices.
    shared_training.shards_of(training.model)
    lost = training.seen.wait_for(events.WorkerLost)
    assert "does not end a function" in lost.reason
    training.seen.wait_for(events.WorkerReadmitted)
    for device in workers:
        with tf.device(device):
            # Elements for the hanging functions, too.
            for _ in range(4):
                tf.raw_ops.QueueEnqueueV2(
                    handle=_queue("never"), components=[7.0]
                )
    assert result.fetch() == 7.0
    assert training.coordinator.counters.value("closures_abandoned") == 1
    history = {"loss": training.losses + training.fit()}
    shared_training.assert_went_on(training.model, history, 2 * _STEPS)
    assert not training.coordinator.absent_workers
    assert len(training.seen.of(events.WorkerLost)) == 1


def _constant(device: str, _: pathlib.Path) -> None:
    with tf.device(device):
        tf.constant([4.25, -1.0])


def _element_of_queue(device: str, _: pathlib.Path) -> None:
    queues = RemoteQueues(device, "test", 2, [tf.float32])
    queues.put_now(0, [0.5])
    queues.close()


def _file_of_checkpoint(device: str, folder: pathlib.Path) -> None:
    assert shared_folder.is_seen_by(str(folder), [device])


@pytest.mark.parametrize(
    "call", [_constant, _element_of_queue, _file_of_checkpoint]
)
def test_other_threads_run_while_a_call_waits_for_a_ps_that_hangs(
    training: _Training,
    tmp_path: pathlib.Path,
    call: Callable[[str, pathlib.Path], Any],
) -> None:
    """A constant is made there under Python's global interpreter lock."""
    process = training.cluster.process("ps", 1)
    device = training.coordinator.strategy.ps_devices[1]
    thread = threading.Thread(target=call, args=[device, tmp_path])
    process.send_signal(signal.SIGSTOP)
    # Else this thread would not run to end the test.
    rescue = subprocess.Popen(
        ["sh", "-c", f"sleep {_RESCUE_SECONDS}; kill -CONT {process.pid}"],
        start_new_session=True,
    )
    try:
        thread.start()
        for _ in range(_NUM_TURNS):
            thread.join(_TURN_SECONDS)
        assert rescue.poll() is None
        assert thread.is_alive()
    finally:
        process.send_signal(signal.SIGCONT)
        os.killpg(rescue.pid, signal.SIGKILL)
        rescue.wait()
        thread.join()


def test_threads_do_not_share_the_copy_of_a_number(training: _Training) -> None:
    """TensorFlow keeps one tensor for a number; its copy may come too late."""
    device = training.coordinator.strategy.ps_devices[0]
    meet = threading.Barrier(_NUM_THREADS)
    failures = []

    def make_constants() -> None:
        for number in range(_NUM_CONSTANTS):
            meet.wait(_RESCUE_SECONDS)
            try:
                with tensorflow_execution.own_executor():
                    with tf.device(device):
                        tf.constant(1_000_000 + number)
                    here = tf.constant(2_000_000 + number)
                    with tf.device(device):
                        tf.raw_ops.Identity(input=here)
            except tf.errors.OpError as error:
                failures.append(error)

    threads = [
        threading.Thread(target=make_constants) for _ in range(_NUM_THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("kind", shared_damage.KINDS)
def test_the_newest_checkpoint_is_damaged_when_a_ps_is_lost(
    training: _Training,
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    model = training.model
    shared_training.assert_slots_are_trained(model)
    older = shared_training.shards_of(model)
    training.fit()
    training.manager.save()
    training.manager.sync()
    newer = shared_training.shards_of(model)
    for path in tmp_path.glob("ckpt-2.data-*"):
        shared_damage.damage(path, kind)
    training.cluster.kill("ps", 1)
    training.cluster.start("ps", 1, wait=True)
    now = shared_training.shards_of(model)
    for before, after, (path_in_model, index, value) in zip(
        older, newer, now, strict=True
    ):
        expected = before if index == 1 else after
        np.testing.assert_array_equal(value, expected[2], path_in_model)
    (event,) = training.seen.of(events.ParameterServerRecovered)
    assert event.source == str(tmp_path / "ckpt-1")
    assert "ckpt-2 cannot be read" in caplog.text
    history = {"loss": training.losses + training.fit()}
    shared_training.assert_went_on(model, history, 3 * _STEPS)
