"""Tests that a job can be watched from outside while it trains."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.monitoring.serving import job_sockets
from tfps_plugin.monitoring.serving.state_client import StateClient
from tfps_plugin.monitoring.state.cluster_state import ClusterState
from tfps_plugin.telemetry.state_endpoint import StateEndpoint

_ROWS, _WIDTH, _IDS = 1000, 8, 4
_BATCH, _STEPS = 32, 12
_DEADLINE_SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    """Yields a cluster of its own, whose tasks die here."""
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        yield cluster


_NewStrategy = Callable[..., tfps.ParameterServerStrategy]


@pytest.fixture
def new_strategy(cluster: tfps.LocalCluster) -> Iterator[_NewStrategy]:
    """Yields a function that makes strategies, by the options of monitoring."""
    made = []

    def make(
        on: tfps.LocalCluster = cluster, **monitoring: Any
    ) -> tfps.ParameterServerStrategy:
        made.append(
            tfps.ParameterServerStrategy(
                on.cluster_resolver,
                tfps.partitioners.MinSizePartitioner(1024, max_shards=2),
                monitoring=tfps.MonitoringOptions(**monitoring),
            )
        )
        return made[-1]

    yield make
    for strategy in made:
        if strategy.coordinator is not None:
            strategy.coordinator.close()


def _model(strategy: tfps.ParameterServerStrategy) -> keras.Model:
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([_IDS], dtype="int32"),
                keras.layers.Embedding(_ROWS, _WIDTH, name="items"),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ],
            name="ranking",
        )
        model.compile("adam", "mse", metrics=["mae"])
    return model


def _batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
    del context
    ids = np.arange(_BATCH * _IDS).reshape(_BATCH, _IDS) % _ROWS
    return (
        tf.data.Dataset.from_tensor_slices((ids, np.ones([_BATCH, 1], "f")))
        # The size of a batch is not known before it is read.
        .batch(_BATCH)
        .repeat()
    )


class _Look(keras.callbacks.Callback):
    """Calls a function at the end of each epoch."""

    def __init__(self, look: Callable[[int, Any], None]) -> None:
        super().__init__()
        self._look = look

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._look(epoch, logs)


def _cli(*arguments: str) -> str:
    """Runs `tfps` as another process of the same user."""
    return subprocess.run(
        [sys.executable, "-m", "tfps_plugin", *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECONDS,
    ).stdout


def _last_scalars(folder: pathlib.Path) -> dict[str, float]:
    """Returns what TensorBoard reads: the last value of each name."""
    (file,) = folder.iterdir()
    return {
        value.tag: float(tf.make_ndarray(value.tensor))
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    }


def test_another_process_sees_what_fit_does(
    cluster: tfps.LocalCluster,
    new_strategy: _NewStrategy,
    tmp_path: pathlib.Path,
) -> None:
    strategy = new_strategy(count_rows=True)
    model = _model(strategy)
    seen: list[tuple[dict[str, Any], Any]] = []
    texts = []

    def look(epoch: int, logs: Any) -> None:
        job = str(os.getpid())
        began_at = time.time()
        state: dict[str, Any] = {"time": 0.0}
        # Several viewers may get a state that is almost a second old.
        while state["time"] < began_at:
            assert time.time() - began_at < _DEADLINE_SECONDS
            state = json.loads(_cli("status", "--json", "--job", job))
        seen.append((state, dict(logs)))
        texts.append(_cli("status", "--job", job))

    model.fit(
        tfps.DatasetCreator(_batches),
        steps_per_epoch=_STEPS,
        epochs=2,
        verbose=0,
        callbacks=[
            _Look(look),
            tfps.callbacks.ClusterMetrics(tmp_path, every_seconds=0.5),
        ],
    )
    scalars = _last_scalars(tmp_path / "cluster")
    assert scalars["job/healthy_tasks"] == 5
    assert scalars["ps_0/num_bytes"] == strategy.bytes_per_ps[0]
    for number, (state, logs) in enumerate(seen, 1):
        job = state["job"]
        assert (job["work"], job["is_running"]) == ("fit of ranking", True)
        assert (job["epoch"], job["num_epochs"]) == (number, 2)
        assert (job["step"], job["steps_per_epoch"]) == (_STEPS, _STEPS)
        assert job["total_steps"] == number * _STEPS
        assert job["metrics"] == pytest.approx(logs)
    state = seen[-1][0]
    for job, tasks in (
        ("worker", state["workers"]),
        ("ps", state["parameter_servers"]),
    ):
        assert [task["health"] for task in tasks] == ["healthy"] * 2
        assert [task["process_id"] for task in tasks] == [
            cluster.process(job, index).pid for index in (0, 1)
        ]
        assert all(task["memory_bytes"] > 50e6 for task in tasks)
        assert all(task["uptime_seconds"] > 0 for task in tasks)
    assert state["chief"]["process_id"] == os.getpid()
    # The truth: what Keras has, wherever it is.
    held = sum(ps["num_bytes"] for ps in state["parameter_servers"])
    assert held == sum(strategy.bytes_per_ps)
    assert held >= 3 * 4 * _ROWS * _WIDTH
    rows = [ps["num_rows"] for ps in state["parameter_servers"]]
    assert rows == [_ROWS // 2, _ROWS // 2]
    for ps in state["parameter_servers"]:
        assert [table["name"] for table in ps["tables"]] == [
            "ranking/items/embeddings"
        ]
    assert "fit of ranking" in texts[-1]
    assert "epoch 2 of 2" in texts[-1]
    assert "ranking/items/embeddings" in texts[-1]


def test_examples_are_counted_exactly(new_strategy: _NewStrategy) -> None:
    strategy = new_strategy()
    model = _model(strategy)
    counts = []

    def look(epoch: int, logs: Any) -> None:
        counts.append(strategy.progress.num_examples())

    rows = 3 * _BATCH + 5
    ids = np.zeros([rows, _IDS], "int32")
    model.fit(
        ids,
        np.ones([rows, 1], "f"),
        batch_size=_BATCH,
        epochs=2,
        verbose=0,
        validation_data=(ids[:7], np.ones([7, 1], "f")),
        callbacks=[_Look(look)],
    )
    assert counts == [rows, 2 * rows]


def test_a_custom_loop_is_seen(new_strategy: _NewStrategy) -> None:
    strategy = new_strategy()
    coordinator = tfps.ClusterCoordinator(strategy)

    @tf.function
    def step() -> tf.Tensor:
        return tf.constant(1.0)

    for _ in range(7):
        coordinator.schedule(step)
    coordinator.join()
    state = tfps.cluster_state(strategy)
    assert (state.job.work, state.job.total_steps) == ("", 7)
    assert state.counters["closures_done"] == 7
    # Steps of `fit` and evaluations are added to those of the loop.
    model = _model(strategy)
    for number in (1, 2):
        model.evaluate(tfps.DatasetCreator(_batches), steps=3, verbose=0)
        coordinator.schedule(step)
        coordinator.join()
        total = tfps.cluster_state(strategy).job.total_steps
        assert total == 7 + 4 * number
    # So are the batches of `predict`.
    model.predict(np.zeros([5, _IDS], "int32"), batch_size=2, verbose=0)
    assert tfps.cluster_state(strategy).job.total_steps == 7 + 4 * 2 + 3


def _wait_for(
    client: StateClient, condition: Callable[[ClusterState], bool]
) -> ClusterState:
    """Returns the first state that fulfills a condition."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    asked = threading.Event()
    while True:
        state = client.state()
        if condition(state):
            return state
        assert time.monotonic() < deadline, state
        # As a viewer does: it looks a few times a second.
        asked.wait(0.2)


def test_losses_and_returns_are_seen(
    cluster: tfps.LocalCluster,
    new_strategy: _NewStrategy,
    tmp_path: pathlib.Path,
) -> None:
    strategy = new_strategy(
        address="127.0.0.1:0", token="secret", count_rows=True
    )
    model = _model(strategy)
    port = strategy.session.connection.part(StateEndpoint).port
    assert port is not None
    with pytest.raises(errors.JobUnreachableError, match="401"):
        StateClient(("127.0.0.1", port)).state()
    client = StateClient(("127.0.0.1", port), token="secret")
    found: dict[str, ClusterState] = {}
    is_over = threading.Event()
    traced: list[str] = []
    files: list[pathlib.Path] = []
    waits: list[float] = []
    asked = threading.Event()
    errors_of_watcher: list[BaseException] = []

    def watch() -> None:
        try:
            _wait_for(client, lambda s: s.job.total_steps > _STEPS)
            folder = tmp_path / "profile"
            traced.append(
                _cli(
                    *("profile", "--seconds", "1", "--task", "ps:1"),
                    *("--directory", str(folder), "--job", str(os.getpid())),
                )
            )
            files.extend(folder.rglob("*.xplane.pb"))
            stopped = cluster.process("worker", 1)
            stopped.send_signal(signal.SIGSTOP)
            try:
                # It is asked for numbers, and does not answer.
                for _ in range(3):
                    began_at = time.monotonic()
                    client.state()
                    waits.append(time.monotonic() - began_at)
                    asked.wait(0.9)
            finally:
                stopped.send_signal(signal.SIGCONT)
            cluster.kill("worker", 1)
            found["lost"] = _wait_for(
                client, lambda s: s.workers[1].health == "lost"
            )
            cluster.start("worker", 1)
            found["back"] = _wait_for(
                client, lambda s: s.workers[1].health == "healthy"
            )
            _wait_for(client, lambda s: s.last_checkpoint is not None)
            cluster.kill("ps", 0)
            found["recovering"] = _wait_for(
                client, lambda s: s.parameter_servers[0].health == "recovering"
            )
            cluster.start("ps", 0)
            found["recovered"] = _wait_for(
                client,
                lambda s: (
                    s.parameter_servers[0].num_restarts == 1
                    and s.parameter_servers[0].health == "healthy"
                ),
            )
        except BaseException as error:
            errors_of_watcher.append(error)
        finally:
            is_over.set()

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = is_over.is_set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        model.fit(
            tfps.DatasetCreator(_batches),
            steps_per_epoch=_STEPS,
            epochs=100_000,
            verbose=0,
            callbacks=[
                Stop(),
                tfps.callbacks.BackupAndRestore(
                    str(tmp_path / "backup"), save_freq=10 * _STEPS
                ),
            ],
        )
    finally:
        is_over.wait(_DEADLINE_SECONDS)
        watcher.join(_DEADLINE_SECONDS)
    assert not errors_of_watcher, errors_of_watcher
    (trace,) = files
    assert trace.stat().st_size > 10_000
    assert max(waits) < 5.0
    assert str(trace) in traced[0]
    lost = found["lost"]
    assert lost.workers[0].health == "healthy"
    assert lost.workers[1].detail
    assert "WorkerLost" in [event.kind for event in lost.events]
    assert found["back"].workers[1].num_restarts == 1
    for worker in found["recovering"].workers:
        assert worker.steps_per_second is None
    kinds = {event.kind for event in found["recovered"].events}
    assert {
        "WorkerLost",
        "WorkerReadmitted",
        "ParameterServerLost",
        "ParameterServerRecovered",
    } <= kinds
    checkpoint = found["recovered"].last_checkpoint
    assert checkpoint is not None
    assert checkpoint.path.startswith(str(tmp_path / "backup"))
    assert found["recovered"].counters["ps_recovered"] == 1


def test_a_job_that_may_not_be_watched_has_no_socket(
    new_strategy: _NewStrategy,
) -> None:
    new_strategy()
    assert os.getpid() in job_sockets.running()
    strategy = new_strategy(enabled=False)
    assert os.getpid() not in job_sockets.running()
    assert tfps.cluster_state(strategy).workers[0].health == "healthy"


def test_nothing_is_left_of_the_server_when_its_job_is_over() -> None:
    with tfps.LocalCluster(num_workers=1, num_ps=1) as cluster:
        strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
        assert os.getpid() in job_sockets.running()
        del strategy
    assert os.getpid() not in job_sockets.running()
    assert not [
        thread
        for thread in threading.enumerate()
        if thread.name == "tfps-state-server"
    ]
