"""Tests of the evaluator of a training on real processes."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import runpy
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import device_attributes_pb2

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.evaluation.running_job import ProbedJob

_ROOT = pathlib.Path(__file__).parent.parent
_DEADLINE_SECONDS = 240.0


def test_the_page_shows_the_example_that_is_tested() -> None:
    page = (_ROOT / "docs" / "evaluation.md").read_text()
    (shown,) = re.findall(r"```python\n(def evaluate.*?)```", page, re.DOTALL)
    assert shown in (_ROOT / "examples" / "sidecar.py").read_text()


def test_the_example_evaluates_up_to_the_last_checkpoint(
    tmp_path: pathlib.Path,
) -> None:
    command = [sys.executable, "-m", "tfps_plugin", "run", "--evaluator"]
    ended = subprocess.run(
        [*command, "--workers=1", str(_ROOT / "examples" / "sidecar.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "evaluator ended with" not in ended.stderr
    lines = re.findall(r"^evaluator \| (.*)$", ended.stdout, re.MULTILINE)
    assert lines[-3].startswith("epoch-4.keras (step 400): ")
    assert lines[-2] == "The evaluator ends: the job is over."
    shown = re.fullmatch(
        r"best accuracy (\d\.\d{4}), base rate (\d\.\d{4})", lines[-1]
    )
    assert shown is not None, lines[-1]
    accuracy, base_rate = map(float, shown.groups())
    # Keras alone confirms the score of the best model.
    best = tmp_path / "best" / "model.keras"
    note = json.loads(best.with_name("model.keras.json").read_text())
    model = keras.models.load_model(tmp_path / note["checkpoint"])
    exported = keras.models.load_model(best, compile=False)
    for its, ours in zip(model.weights, exported.weights, strict=True):
        np.testing.assert_array_equal(its, ours)
    assert int(model.optimizer.iterations) == note["step"]
    example = runpy.run_path(str(_ROOT / "examples" / "sidecar.py"))
    data = example["make_dataset"](seed=1000)
    again = model.evaluate(data, steps=20, verbose=0, return_dict=True)
    assert again == pytest.approx(note["metrics"], rel=1e-4)
    assert 0.5 <= base_rate < 0.55
    # The best model is the one with the least loss.
    assert accuracy >= round(again["accuracy"], 4) > 0.8


# A training whose tables are sharded over two ps, and its checkpoints.


def _make_model() -> keras.Model:
    first, second = (keras.Input([3], dtype="int32") for _ in range(2))
    shared = tfps.layers.DistributedEmbedding(
        {
            name: tfps.layers.FeatureConfig(
                name=name,
                table=tfps.layers.TableConfig(
                    name=f"table_{name}",
                    vocabulary_size=size,
                    embedding_dim=4,
                ),
                input_shape=(None, 3),
                output_shape=(None, 4),
            )
            for name, size in (("a", 40), ("b", 60))
        }
    )({"a": first, "b": second})
    rows = keras.layers.Embedding(50, 4, name="plain")(first)
    rows = keras.layers.SpatialDropout1D(0.5)(rows)
    flat = keras.layers.Flatten()(rows)
    joined = keras.layers.Concatenate()([flat, *shared.values()])
    joined = keras.layers.BatchNormalization()(joined)
    model = keras.Model([first, second], keras.layers.Dense(1)(joined))
    model.compile("adam", "mse", metrics=["mae"])
    return model


def _data() -> tuple[list[np.ndarray], np.ndarray]:
    random = np.random.default_rng(0)
    ids = [random.integers(0, 40, [64, 3], np.int32) for _ in range(2)]
    return ids, (ids[0].mean(1, keepdims=True) / 40).astype("float32")


def _dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
    (first, second), y = _data()
    pairs = tf.data.Dataset.from_tensor_slices(((first, second), y))
    return pairs.repeat().batch(16)


def _write_by_tensorflow(folder: pathlib.Path, model: keras.Model) -> None:
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1).save()


def _write_by_parameter_servers(
    folder: pathlib.Path, model: keras.Model
) -> None:
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), folder)
    manager.save()
    manager.sync()


def _write_increments(folder: pathlib.Path, model: keras.Model) -> None:
    checkpoint = tfps.Checkpoint(model=model)
    manager = tfps.CheckpointManager(checkpoint, folder, full_every=3)
    for _ in range(2):
        manager.save()
        manager.sync()
    assert ".increments" in str(manager.latest_checkpoint)


_WRITERS: dict[str, Callable[[pathlib.Path, keras.Model], None]] = {
    "archive": lambda folder, model: model.save(folder / "m-1.keras"),
    "weights": lambda folder, model: model.save_weights(
        folder / "last.weights.h5"
    ),
    "tensorflow": _write_by_tensorflow,
    "parameter servers": _write_by_parameter_servers,
    "increments": _write_increments,
}


@dataclasses.dataclass
class _Training:
    """Results of a training that is over."""

    folder: pathlib.Path
    weights: list[np.ndarray]
    metrics: dict[str, float]
    job: ProbedJob
    was_over: bool
    refusal: str


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> _Training:
    folder = tmp_path_factory.mktemp("checkpoints")
    with tfps.LocalCluster(num_workers=1, num_ps=2) as cluster:
        resolver = cluster.cluster_resolver
        strategy = tfps.ParameterServerStrategy(
            resolver,
            variable_partitioner=tfps.partitioners.FixedShardsPartitioner(2),
        )
        with strategy.scope():
            model = _make_model()
        model.fit(
            tfps.DatasetCreator(_dataset_fn),
            epochs=1,
            steps_per_epoch=20,
            verbose=0,
        )
        for name, write in _WRITERS.items():
            (folder / name).mkdir()
            write(folder / name, model)
        with pytest.raises(errors.UnsupportedError) as refused:
            tfps.SidecarEvaluator(model, _data(), folder)
        x, y = _data()
        tasks = resolver.cluster_spec().as_dict()
        # The chief is this process, which does not end.
        tasks.pop("chief", None)
        job = ProbedJob(
            ClusterSpec.from_dict(tasks),
            silence_seconds=0.5,
            interval_seconds=0,
        )
        trained = _Training(
            folder,
            [weight.numpy() for weight in model.weights],
            model.evaluate(x, y, verbose=0, return_dict=True),
            job,
            job.is_over(),
            str(refused.value),
        )
        tfps.ClusterCoordinator(strategy).close()
    return trained


@pytest.mark.parametrize("kind", _WRITERS)
def test_a_plain_model_gets_what_was_trained_in_shards(
    kind: str, training: _Training
) -> None:
    evaluator = tfps.SidecarEvaluator(
        _make_model(),
        _data(),
        training.folder / kind,
        max_evaluations=1,
        poll_interval_seconds=0.05,
        no_checkpoint_timeout_seconds=10.0,
    )
    (evaluation,) = evaluator.start()
    assert evaluation.step == 20
    # An increment alone is not a model.
    assert ".increments" not in evaluation.checkpoint
    assert evaluation.metrics == pytest.approx(training.metrics, rel=1e-5)
    plain: list[Any] = evaluator.model.weights
    for ours, its in zip(plain, training.weights, strict=True):
        np.testing.assert_array_equal(ours, its)


def test_a_model_of_the_cluster_is_refused(training: _Training) -> None:
    assert "outside strategy.scope()" in training.refusal


def test_a_job_is_over_when_its_tasks_are_gone(training: _Training) -> None:
    assert not training.was_over
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not training.job.is_over():
        assert time.monotonic() < deadline


# An evaluator of a job whose tasks are stand-ins that record the calls.

_GET_STATUS = "/tensorflow.WorkerService/GetStatus"
_EVALUATOR = """
import sys

import keras
import numpy as np

import tfps_plugin as tfps

assert tfps.init().job == "evaluator"
(evaluation,) = tfps.SidecarEvaluator(
    keras.saving.load_model(f"{sys.argv[1]}/m-1.keras"),
    (np.ones([8, 2]), np.ones([8, 1])),
    sys.argv[1],
    max_evaluations=1,
).start()
"""


def _status(name: str) -> bytes:
    """Returns the GetStatusResponse of a task with one device."""
    device = device_attributes_pb2.DeviceAttributes(
        name=f"{name}/device:CPU:0", device_type="CPU", incarnation=7
    ).SerializeToString()
    return b"\x0a" + bytes([len(device)]) + device


class _StandIn(grpc.GenericRpcHandler):
    """A server in place of a task that records the calls.

    Attributes:
        asked: The names of the called methods.
    """

    def __init__(self, answer: bytes | None) -> None:
        """Creates a stand-in with an answer; None to refuse."""
        self.asked: set[str] = set()
        self._answer = answer

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Records the method; supports only that for its status."""
        self.asked.add(details.method)
        if self._answer is None or details.method != _GET_STATUS:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda _, __: self._answer)


@contextlib.contextmanager
def _serving(stand_in: _StandIn) -> Iterator[str]:
    """Serves a stand-in; yields its address."""
    with futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, [stand_in])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def test_it_asks_tasks_whether_they_live_and_connects_to_none(
    tmp_path: pathlib.Path,
) -> None:
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.save(tmp_path / "m-1.keras")
    # The chief is not ready yet, so that the ps is asked, too.
    chief = _StandIn(None)
    parameter_server = _StandIn(_status("/job:ps/replica:0/task:0"))
    with (
        _serving(chief) as chief_address,
        _serving(parameter_server) as ps_address,
        socket.create_server(("127.0.0.1", 0)) as worker,
    ):
        cluster = {
            "chief": [chief_address],
            "ps": [ps_address],
            "worker": [f"127.0.0.1:{worker.getsockname()[1]}"],
        }
        task = {"type": "evaluator", "index": 0}
        config = json.dumps({"cluster": cluster, "task": task})
        ended = subprocess.run(
            [sys.executable, "-c", _EVALUATOR, str(tmp_path)],
            env={
                **os.environ,
                "PYTHONPATH": str(_ROOT),
                "TF_CONFIG": config,
            },
            capture_output=True,
            text=True,
            timeout=_DEADLINE_SECONDS,
            check=False,
        )
        callers, _, _ = select.select([worker], [], [], 0)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "m-1.keras" in ended.stdout
    assert chief.asked == parameter_server.asked == {_GET_STATUS}
    assert not callers, "workers come and go: nobody asks them"
