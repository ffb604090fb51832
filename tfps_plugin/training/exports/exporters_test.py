"""Tests of exports of models of this process: their own rows are the truth."""

import errno
import fcntl
import os
import pathlib
import subprocess
import sys
import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin import serving
from tfps_plugin.exports.export_folder import ExportFolder
from tfps_plugin.training.exports import row_copies
from tfps_plugin.training.exports.export_callback import ExportChanges

_SECONDS = 60.0


def _model() -> keras.Model:
    ids = keras.Input((), dtype="int64")
    items = tfps.layers.DynamicEmbedding(4, capacity=200, name="items")(ids)
    users = keras.layers.Embedding(200, 4, name="users")(
        keras.ops.mod(ids, 200)
    )
    model = keras.Model(ids, keras.layers.Dense(1, name="out")(items + users))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def _train(model: keras.Model, ids: Any, **options: Any) -> None:
    ids = np.asarray(ids, np.int64)
    model.fit(ids, np.ones((len(ids), 1)), verbose=0, **options)


def _require_equal(tables: serving.Tables, model: keras.Model) -> None:
    ids, rows = model.get_layer("items").export()
    assert tables["items"].ids.tolist() == sorted(ids)
    np.testing.assert_array_equal(tables["items"].lookup(ids), rows)
    np.testing.assert_array_equal(
        tables["users"].rows, model.get_layer("users").embeddings
    )
    np.testing.assert_array_equal(
        tables.dense["out/kernel"], model.get_layer("out").kernel
    )


def test_only_what_has_changed_is_exported(tmp_path: pathlib.Path) -> None:
    model = _model()
    _train(model, [-5, 7, 2**62])
    export = tfps.export_changes(model, tmp_path)
    assert export is not None
    assert (export.is_base, export.num_rows) == (True, 200 + 3)
    tables = serving.Tables(tmp_path)
    _require_equal(tables, model)
    assert tfps.export_changes(model, tmp_path) is None
    _train(model, [7, 8])
    export = tfps.export_changes(model, tmp_path, step=77)
    assert export is not None
    # Two of items and two of users.
    assert (export.is_base, export.num_rows) == (False, 4)
    assert tables.refresh() == 2
    assert tables.step == 77
    _require_equal(tables, model)


def test_a_step_is_a_whole_number_of_any_type(tmp_path: pathlib.Path) -> None:
    model = _model()
    _train(model, [1])
    no_steps: list[Any] = [2.0, "2", np.array([2])]
    for step in no_steps:
        with pytest.raises(TypeError, match="step="):
            tfps.export_changes(model, tmp_path, step=step)
    assert not list(tmp_path.iterdir())
    steps: list[Any] = [np.int64(3), tf.constant(4)]
    for step in steps:
        _train(model, [1])
        tfps.export_changes(model, tmp_path, step=step)
        assert serving.Tables(tmp_path).step == int(step)


def test_ids_without_rows_are_removed(tmp_path: pathlib.Path) -> None:
    model = _model()
    _train(model, [1, 2, 3])
    tfps.export_changes(model, tmp_path)
    tables = serving.Tables(tmp_path)
    layer = model.get_layer("items")
    records = layer._records.numpy()
    # Frees the row of 2, and gives the row of 3 to 9.
    records[(records[:, 0] == 2) & (records[:, 1] > 0)] = 0
    records[(records[:, 0] == 3) & (records[:, 1] > 0), 0] = 9
    layer._records.assign(records)
    export = tfps.export_changes(model, tmp_path)
    assert export is not None
    assert (export.num_rows, export.num_removed) == (1, 2)
    tables.refresh()
    assert tables["items"].ids.tolist() == [1, 9]
    _require_equal(tables, model)


def test_a_new_program_exports_whole_tables(tmp_path: pathlib.Path) -> None:
    model = _model()
    _train(model, [1, 2])
    tfps.export_changes(model, tmp_path)
    tables = serving.Tables(tmp_path)
    other = _model()
    _train(other, [2, 3])
    export = tfps.export_changes(other, tmp_path)
    assert export is not None
    assert (export.number, export.is_base) == (2, True)
    assert tables.refresh() == 2
    _require_equal(tables, other)
    # Nor does the first know what the second has exported.
    export = tfps.export_changes(model, tmp_path)
    assert export is not None
    assert export.is_base


def test_changes_become_a_base_once_they_are_large(
    tmp_path: pathlib.Path,
) -> None:
    model = _model()
    tables = None
    for step in range(4):
        _train(model, [step])
        export = tfps.export_changes(model, tmp_path, compact_at=0)
        assert export is not None
        assert export.is_base == (step in (0, 2))
        tables = tables or serving.Tables(tmp_path)
        tables.refresh()
        _require_equal(tables, model)
    # The manifest, the lock, a base and its changes.
    assert len(list(tmp_path.iterdir())) == 4


def test_changes_of_no_row_become_a_base_once_they_are_large(
    tmp_path: pathlib.Path,
) -> None:
    model = _model()
    _train(model, [1])
    base = tfps.export_changes(model, tmp_path)
    assert base is not None
    tables = serving.Tables(tmp_path)
    kernel, num_bytes = model.get_layer("out").kernel, 0
    for number in range(2, 42):
        kernel.assign_add(np.ones((4, 1)))
        export = tfps.export_changes(model, tmp_path)
        assert export is not None
        assert export.number == number
        # Half of the base is the limit; it is looked at before.
        assert export.is_base == (num_bytes > 0.5 * base.num_bytes)
        num_bytes = 0 if export.is_base else num_bytes + export.num_bytes
        tables.refresh()
        _require_equal(tables, model)
        # And nothing is written if nothing has changed, though a base is due.
        assert tfps.export_changes(model, tmp_path) is None
    assert len(list(tmp_path.iterdir())) < 20


def test_a_failed_export_is_made_up_for(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model()
    _train(model, [1])
    tfps.export_changes(model, tmp_path)
    tables = serving.Tables(tmp_path)
    _train(model, [2])

    def fail(*_: Any) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(ExportFolder, "commit", fail)
        with pytest.raises(OSError, match="no space"):
            tfps.export_changes(model, tmp_path)
    assert tables.refresh() is None
    assert not list(tmp_path.glob(".writing-*"))
    _train(model, [3])
    export = tfps.export_changes(model, tmp_path)
    assert export is not None
    assert not export.is_base
    tables.refresh()
    _require_equal(tables, model)


def test_an_export_during_another_one_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = _model(), _model()
    _train(first, [1, 2])
    _train(second, [2, 3])
    replace = pathlib.Path.replace
    refusals: list[str] = []

    def replace_late(path: pathlib.Path, target: pathlib.Path) -> Any:
        # The first one has its folder, and is not in the manifest yet.
        if not refusals:
            refusals.append("")
            try:
                tfps.export_changes(second, tmp_path)
            except errors.ExportUnreadableError as error:
                refusals[0] = str(error)
        return replace(path, target)

    monkeypatch.setattr(pathlib.Path, "replace", replace_late)
    tfps.export_changes(first, tmp_path)
    tables = serving.Tables(tmp_path)
    _require_equal(tables, first)
    assert f"process {os.getpid()} on" in refusals[0]
    # Afterwards it may.
    tfps.export_changes(second, tmp_path)
    tables.refresh()
    _require_equal(tables, second)


# Holds the lock of a folder until it is killed.
_HOLDS = """
import pathlib, sys
from tfps_plugin.training.exports import folder_lock

with folder_lock.held(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_program_that_dies_lets_go_of_the_folder(
    tmp_path: pathlib.Path,
) -> None:
    model = _model()
    _train(model, [1])
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(
            errors.ExportUnreadableError, match=f"process {other.pid} on"
        ):
            tfps.export_changes(model, tmp_path)
        other.kill()
    tfps.export_changes(model, tmp_path)
    _require_equal(serving.Tables(tmp_path), model)


def test_a_file_system_without_locks_is_exported_to(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    model = _model()
    _train(model, [1])
    tfps.export_changes(model, tmp_path)
    _require_equal(serving.Tables(tmp_path), model)


def test_the_callback_exports_while_fit_trains(tmp_path: pathlib.Path) -> None:
    model = _model()
    export = tfps.callbacks.ExportChanges(tmp_path, save_freq=2)
    _train(model, range(12), batch_size=2, callbacks=[export])
    tables = serving.Tables(tmp_path)
    assert tables.version > 1
    assert tables.step == 6
    _require_equal(tables, model)


def test_a_failure_of_the_last_export_is_raised(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(ExportFolder, "commit", fail)
    model = _model()
    export = tfps.callbacks.ExportChanges(tmp_path, minutes=0)
    with pytest.raises(OSError, match="no space"):
        _train(model, range(4), batch_size=2, callbacks=[export])


def test_a_folder_that_cannot_be_read_ends_no_training(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model()
    export = tfps.callbacks.ExportChanges(tmp_path, minutes=0)
    real, num_reads = ExportFolder.read, 0

    def fail_twice(folder: ExportFolder) -> Any:
        nonlocal num_reads
        # Files are written on another thread.
        if threading.current_thread() is threading.main_thread():
            num_reads += 1
            if num_reads in (2, 3):
                raise OSError("stale file handle")
        return real(folder)

    def finish_write(*_: Any, **__: Any) -> None:
        assert export._writer is not None
        export._writer.join(_SECONDS)

    monkeypatch.setattr(ExportFolder, "read", fail_twice)
    finishes = keras.callbacks.LambdaCallback(on_train_batch_end=finish_write)
    _train(model, range(12), batch_size=2, callbacks=[export, finishes])
    assert num_reads > 3
    _require_equal(serving.Tables(tmp_path), model)


def test_a_full_disk_of_a_parameter_server_ends_no_training(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model()
    export = tfps.callbacks.ExportChanges(tmp_path, save_freq=2)
    real, num_calls = row_copies.take, 0

    def fail_once(*arguments: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            raise errors.VariableCreationError("no room for the copy")
        return real(*arguments)

    monkeypatch.setattr(row_copies, "take", fail_once)
    _train(model, range(12), batch_size=2, callbacks=[export])
    assert num_calls > 1
    _require_equal(serving.Tables(tmp_path), model)


def test_float16_is_exported_as_it_is(tmp_path: pathlib.Path) -> None:
    layer = keras.layers.Embedding(5, 3, name="rows", dtype="float16")
    model = keras.Sequential([keras.Input((), dtype="int32"), layer])
    tfps.export_changes(model, tmp_path)
    rows = serving.Tables(tmp_path)["rows"].rows
    assert rows.dtype == np.float16
    np.testing.assert_array_equal(rows, layer.embeddings)


def test_numbers_from_the_end_are_rows_of_the_layer(
    tmp_path: pathlib.Path,
) -> None:
    layer = keras.layers.Embedding(5, 3, name="rows")
    model = keras.Sequential([keras.Input((), dtype="int32"), layer])
    tfps.export_changes(model, tmp_path)
    numbers = np.array([-1, 0, -5, 4])
    np.testing.assert_array_equal(
        serving.Tables(tmp_path)["rows"].lookup(numbers), layer(numbers)
    )


def test_bfloat16_is_exported_as_float32(tmp_path: pathlib.Path) -> None:
    layer = keras.layers.Embedding(5, 3, name="rows", dtype="bfloat16")
    model = keras.Sequential([keras.Input((), dtype="int32"), layer])
    tfps.export_changes(model, tmp_path)
    rows = serving.Tables(tmp_path)["rows"].rows
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(
        rows, keras.ops.cast(layer.embeddings, "float32")
    )


def test_tables_of_one_layer_have_its_name(tmp_path: pathlib.Path) -> None:
    tables = [
        tfps.layers.TableConfig("a", 5, 3),
        tfps.layers.TableConfig("b", 7, 3),
    ]
    layer = tfps.layers.DistributedEmbedding(
        {
            table.name: tfps.layers.FeatureConfig(
                table.name, table, (2,), (2, 3)
            )
            for table in tables
        },
        name="many",
    )
    ids = {name: keras.Input((), 2, dtype="int32", name=name) for name in "ab"}
    model = keras.Model(ids, layer(ids))
    tfps.export_changes(model, tmp_path)
    exported = serving.Tables(tmp_path)
    for name, rows in layer.get_embedding_tables().items():
        np.testing.assert_array_equal(exported[f"many/{name}"].rows, rows)
    assert not exported.dense


_FIRST = {
    "uniform": "uniform",
    "constant": keras.initializers.Constant(0.3),
    "normal": keras.initializers.RandomNormal(0.1, 0.2, seed=1),
    "scaled": keras.initializers.VarianceScaling(1.0, "fan_out", seed=2),
}
_ASKED = {
    "int64": np.array([3, 4, -1, -(2**63), 2**63 - 1, 0, 17]),
    "uint64": np.array([3, 2**64 - 4, 2**63, 2**63 + 9], np.uint64),
    "string": np.array(["3", "vier", "", "ünf"]),
}


@pytest.mark.parametrize(
    ("unknown", "first", "ids", "dtype"),
    [
        ("initial", "uniform", "int64", "float32"),
        ("initial", "constant", "int64", "float32"),
        ("initial", "normal", "int64", "float32"),
        ("initial", "scaled", "int64", "float32"),
        ("initial", "normal", "uint64", "float32"),
        ("initial", "normal", "string", "float32"),
        ("initial", "normal", "int64", "bfloat16"),
        ("initial", "uniform", "int64", "float64"),
        ("initial", "uniform", "int64", "mixed_float16"),
        ("zeros", "uniform", "int64", "float32"),
        ("shared", "normal", "string", "bfloat16"),
        ("shared", "normal", "int64", "mixed_float16"),
    ],
)
def test_unknown_ids_have_what_the_layer_gives(
    tmp_path: pathlib.Path,
    unknown: str,
    first: str,
    ids: str,
    dtype: str,
) -> None:
    asked = _ASKED[ids]
    layer = tfps.layers.DynamicEmbedding(
        3,
        _FIRST[first],
        capacity=100,
        unknown=unknown,
        name="items",
        dtype=dtype,
    )
    # Of the first two ids, the table has rows.
    layer(tf.constant(asked[:2]), training=True)
    model = keras.Sequential([keras.Input((), dtype=ids), layer])
    tfps.export_changes(model, tmp_path)
    table = serving.Tables(tmp_path)["items"]
    assert (len(table), table.unknown) == (2, unknown)
    expected = layer(tf.constant(asked), training=False)
    # The layer computes in another dtype than that of its rows.
    found = keras.ops.cast(table.lookup(asked), layer.compute_dtype)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(
        table.lookup(asked, "zeros")[2:], np.zeros((len(asked) - 2, 3))
    )


def test_a_shared_row_is_told_from_one_of_the_same_path(
    tmp_path: pathlib.Path,
) -> None:
    ids = keras.Input((), dtype="int64")

    def with_the_path(name: str) -> Any:
        layer: Any = tfps.layers.DynamicEmbedding(
            2,
            keras.initializers.RandomNormal(seed=len(name)),
            capacity=100,
            unknown="shared",
            name=name,
        )
        layer.build()
        layer._shared._path = "items/unknown"
        return layer

    layers = [with_the_path("items"), with_the_path("users")]
    model = keras.Model(ids, [layer(ids) for layer in layers])
    tfps.export_changes(model, tmp_path)
    tables = serving.Tables(tmp_path)
    assert sorted(tables.dense) == ["items/unknown", "items/unknown#2"]
    for layer in layers:
        np.testing.assert_array_equal(
            tables[layer.name].lookup([5]), layer(tf.constant([5]))
        )


def test_refuses_what_cannot_be_exported(tmp_path: pathlib.Path) -> None:
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="no table"):
        tfps.export_changes(plain, tmp_path)
    ids = keras.Input((), dtype="int32")
    lora = keras.layers.Embedding(5, 3, name="rows", lora_rank=2)
    with pytest.raises(errors.UnsupportedError, match="LoRA"):
        tfps.export_changes(keras.Model(ids, lora(ids)), tmp_path)
    for arguments in (
        {"directory": "s3://bucket/tables"},
        {"directory": ""},
        {"directory": "x", "minutes": -1},
        {"directory": "x", "minutes": "5"},
        {"directory": "x", "save_freq": 0},
        {"directory": "x", "compact_at": -1},
    ):
        with pytest.raises(ValueError, match=list(arguments)[-1]):
            ExportChanges(**arguments)
    assert not list(tmp_path.iterdir())
