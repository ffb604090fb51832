"""Tests of exports of tables on a cluster, read by another process."""

import json
import pathlib
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import serving
from tfps_plugin.recovery.incremental import change_files

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_WAIT_SECONDS = 120
# Follows a folder until its standard input ends; then saves the rows.
_READER = """
import pathlib, select, sys
import numpy as np
from tfps_plugin import serving

folder, result = sys.argv[1:]
tables, versions, is_over = None, [], False
while not is_over:
    is_over = bool(select.select([sys.stdin], [], [], 0.005)[0])
    if tables is None:
        if not (pathlib.Path(folder) / "manifest.json").exists():
            continue
        tables = serving.Tables(folder)
    tables.refresh()
    versions.append(tables.version)
assert "tensorflow" not in sys.modules
assert versions == sorted(versions)
np.savez(
    result,
    versions=np.unique(versions),
    ids=tables["items"].ids,
    items=tables["items"].rows,
    users=tables["users"].rows,
    kernel=tables.dense["out/kernel"],
)
"""
# Predicts at each new export, until its standard input ends.
_SERVER = """
import json, pathlib, select, sys
import numpy as np
from tfps_plugin import serving

folder, asked = sys.argv[1], np.array(json.loads(sys.argv[2]))
tables, is_over = None, False
while not is_over:
    is_over = bool(select.select([sys.stdin], [], [], 0.005)[0])
    if tables is None:
        if not (pathlib.Path(folder) / "manifest.json").exists():
            continue
        tables = serving.Tables(folder)
    elif tables.refresh() is None:
        continue
    now = tables.snapshot()
    rows = now.tables["items"].lookup(asked)
    rows = rows + now.tables["queries"].lookup(asked)
    rows = rows + now.tables["users"].lookup(asked % 300)
    predicted = rows @ now.dense["out/kernel"] + now.dense["out/bias"]
    print(json.dumps([now.export.step, predicted.tolist()]), flush=True)
assert "tensorflow" not in sys.modules
"""
# The last ones are in no batch.
_ASKED = [1, 7, -5, 39, 12345678901, -(2**63), -77]


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(2),
    )
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


def _model(strategy: tfps.ParameterServerStrategy) -> keras.Model:
    with strategy.scope():
        ids = keras.Input((), dtype="int64")
        items = tfps.layers.DynamicEmbedding(4, capacity=500, name="items")
        users = keras.layers.Embedding(300, 4, name="users")
        sums = items(ids) + users(keras.ops.mod(ids, 300))
        model = keras.Model(ids, keras.layers.Dense(1, name="out")(sums))
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def _train(model: keras.Model, ids: np.ndarray, **options: Any) -> None:
    targets = np.ones((len(ids), 1), np.float32)
    model.fit(ids, targets, verbose=0, **options)


def _require_equal(found: Any, model: keras.Model) -> None:
    ids, rows = model.get_layer("items").export()
    order = np.argsort(ids)
    np.testing.assert_array_equal(found["ids"], ids[order])
    np.testing.assert_array_equal(found["items"], rows[order])
    users = model.get_layer("users").embeddings
    np.testing.assert_array_equal(
        found["users"], keras.ops.convert_to_numpy(users)
    )
    np.testing.assert_array_equal(
        found["kernel"],
        keras.ops.convert_to_numpy(model.get_layer("out").kernel),
    )


def test_another_process_follows_the_training(
    strategy: tfps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    model = _model(strategy)
    folder, result = tmp_path / "exported", tmp_path / "read.npz"
    ids = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 240)
    with subprocess.Popen(
        [sys.executable, "-c", _READER, str(folder), str(result)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as reader:
        export = tfps.callbacks.ExportChanges(folder, minutes=0)
        _train(model, ids, batch_size=8, epochs=2, callbacks=[export])
        _, log = reader.communicate("over\n", timeout=_WAIT_SECONDS)
    assert reader.returncode == 0, log
    with np.load(result) as found:
        _require_equal(found, model)
        newest = serving.Tables(folder)
        assert newest.version > 1
        assert newest.step == 60
        assert found["versions"][-1] == newest.version


class _Predicted(keras.callbacks.Callback):
    """Predicts after each epoch, and asks another process, too."""

    def __init__(self, server: subprocess.Popen[bytes]) -> None:
        super().__init__()
        self.seen: list[tuple[int, np.ndarray, int, np.ndarray]] = []
        self._server = server

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        predicted = self.model.predict(np.array(_ASKED), verbose=0)
        answers = self._server.stdout
        assert answers is not None
        assert select.select([answers], [], [], _WAIT_SECONDS)[0]
        step, served = json.loads(answers.readline())
        now = int(self.model.optimizer.iterations)
        self.seen.append((now, predicted, step, np.array(served)))


def test_another_process_predicts_what_the_model_does(
    strategy: tfps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    random = keras.initializers.RandomNormal(seed=4)
    with strategy.scope():
        ids = keras.Input((), dtype="int64")
        layers = [
            tfps.layers.DynamicEmbedding(4, random, capacity=500, name="items"),
            tfps.layers.DynamicEmbedding(
                4, random, capacity=500, unknown="shared", name="queries"
            ),
        ]
        users = keras.layers.Embedding(300, 4, name="users")
        rows = keras.layers.Add()(
            [layer(ids) for layer in layers] + [users(keras.ops.mod(ids, 300))]
        )
        model = keras.Model(ids, keras.layers.Dense(1, name="out")(rows))
        model.compile(keras.optimizers.SGD(0.1), "mse")
    folder = tmp_path / "exported"
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(folder), json.dumps(_ASKED)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # So that no answer is in a buffer when the test waits for one.
        bufsize=0,
    ) as server:
        export = tfps.callbacks.ExportChanges(folder, save_freq="epoch")
        predicted = _Predicted(server)
        # As many ids again in each epoch.
        data = np.concatenate([np.arange(-40, 40), [1, 7, -5, 39] * 20])
        _train(
            model,
            data,
            batch_size=8,
            epochs=4,
            callbacks=[export, predicted],
        )
        server.communicate(b"over\n", timeout=_WAIT_SECONDS)
    assert server.returncode == 0
    assert [step for step, *_ in predicted.seen] == [20, 40, 60, 80]
    for step, expected, served_step, served in predicted.seen:
        assert served_step == step
        np.testing.assert_allclose(served, expected, rtol=1e-5, atol=1e-6)
    # What is asked about is not the same all the time.
    first, *_, last = (served for *_, served in predicted.seen)
    assert np.abs(first - last).min() > 1e-4


def test_parameter_servers_find_what_has_changed(
    strategy: tfps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    model = _model(strategy)
    _train(model, np.arange(100))
    export = tfps.export_changes(model, tmp_path)
    assert export is not None
    assert (export.is_base, export.num_rows) == (True, 300 + 100)
    assert tfps.export_changes(model, tmp_path) is None
    _train(model, np.array([3, 299, 3, -1]))
    export = tfps.export_changes(model, tmp_path)
    assert export is not None
    # Of items 3, 299 and -1; of users 3 and 299.
    assert (export.is_base, export.num_rows) == (False, 5)
    tables = serving.Tables(tmp_path)
    _require_equal(
        {
            "ids": tables["items"].ids,
            "items": tables["items"].rows,
            "users": tables["users"].rows,
            "kernel": tables.dense["out/kernel"],
        },
        model,
    )


def test_a_row_that_goes_to_another_id_meanwhile_is_not_exported_as_its_own(
    strategy: tfps.ParameterServerStrategy,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = _model(strategy)
    _train(model, np.arange(20))
    tfps.export_changes(model, tmp_path)
    _train(model, np.arange(20))
    layer = model.get_layer("items")
    ids, rows = layer.export()
    expected = dict(zip(ids.tolist(), rows, strict=True))
    take_mark = change_files.take_mark
    is_first = threading.Lock()
    before_it = layer._records.numpy()
    (row,) = np.flatnonzero((before_it[:, 0] == 3) & (before_it[:, 1] > 0))

    def give_to_another(device: str, part: Any) -> Any:
        mark = take_mark(device, part)
        # Between the first look at the ids and the rows, where that row is.
        is_of_items = any(
            part.variable is shard for shard in layer._embeddings.value.shards
        )
        has_row = 0 <= row - part.offset < int(part.variable.shape[0])
        if is_of_items and has_row and is_first.acquire(blocking=False):
            records = layer._records.numpy()
            is_three = (records[:, 0] == 3) & (records[:, 1] > 0)
            records[is_three, 0] = 1000
            values = layer._embeddings.numpy()
            values[is_three] = 7.0
            layer._records.assign(records)
            layer._embeddings.assign(values)
        return mark

    monkeypatch.setattr(change_files, "take_mark", give_to_another)
    before = serving.Tables(tmp_path)["items"].lookup([3])
    tfps.export_changes(model, tmp_path)
    tables = serving.Tables(tmp_path)
    for number in set(range(20)) - {3}:
        found = tables["items"].lookup([number])[0]
        np.testing.assert_array_equal(found, expected[number])
    # The row of before, or none.
    found = tables["items"].lookup([3], "zeros")
    assert np.array_equal(found, before) or not found.any()
    tfps.export_changes(model, tmp_path)
    tables.refresh()
    assert not tables["items"].lookup([3], "zeros").any()
    np.testing.assert_array_equal(tables["items"].lookup([1000]), [[7.0] * 4])


@pytest.mark.parametrize(
    "consistency",
    [tfps.Sync(), tfps.BoundedStaleness(1)],
    ids=lambda each: type(each).__name__,
)
def test_strings_are_exported_with_every_consistency(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path, consistency: Any
) -> None:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(2),
        consistency=consistency,
    )
    with strategy.scope():
        ids = keras.Input((), dtype="string")
        layer = tfps.layers.DynamicEmbedding(4, capacity=500, name="items")
        outputs = keras.layers.Dense(1, name="out")(layer(ids))
        model = keras.Model(ids, outputs)
        model.compile(keras.optimizers.Adam(0.1), "mse")
    names = np.array([f"näme {number % 150}" for number in range(480)])
    export = tfps.callbacks.ExportChanges(tmp_path, save_freq=10)
    dataset = tf.data.Dataset.from_tensor_slices((names, np.ones(480)))
    model.fit(dataset.batch(8), epochs=2, callbacks=[export], verbose=0)
    tables = serving.Tables(tmp_path)
    assert tables.version > 1
    assert tables.step == int(model.optimizer.iterations)
    np.testing.assert_array_equal(
        tables["items"].lookup(names), layer(tf.constant(names))
    )
    assert len(tables["items"].ids) == 150
    others = np.array(["", "another"])
    np.testing.assert_array_equal(
        tables["items"].lookup(others), layer(tf.constant(others))
    )
    assert not tables["items"].lookup(others, "zeros").any()
    tfps.ClusterCoordinator(strategy).close()
