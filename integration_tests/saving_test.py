"""Tests of models restored from files, with other shards or in one process."""

import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.saving import saved_form
from tfps_plugin.variables.saving import shard_reader

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_ROWS = 500
_BATCH = 32


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    # The table has 16,000 bytes, so it goes in 16 blocks, several per shard.
    monkeypatch.setattr(shard_reader, "BLOCK_BYTES", 1000)


def _strategy(
    cluster: tfps.LocalCluster, num_shards: int
) -> tfps.ParameterServerStrategy:
    def cut_tables(
        shape: tf.TensorShape, dtype: tf.DType, axis: int = 0
    ) -> list[int]:
        return [num_shards if shape[0] == _ROWS else 1] + [1] * (len(shape) - 1)

    return tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        cut_tables,
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
    )


def _dataset(context: Any = None) -> tf.data.Dataset:
    """Makes batches without repeated ids: Adagrad is no reference for them."""
    random = np.random.default_rng(5)
    ids = np.concatenate(
        [random.permutation(_ROWS)[: 4 * _BATCH] for _ in range(4)]
    ).reshape(-1, 4)
    targets = random.integers(0, 2, (len(ids), 1)).astype("float32")
    examples = tf.data.Dataset.from_tensor_slices((ids, targets))
    return examples.repeat().batch(_BATCH)


def _model(
    seed: int, *, num_rows: int = _ROWS, num_units: int = 16
) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(num_rows, 8),
            keras.layers.Flatten(),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(num_units, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.Adagrad(0.1), "binary_crossentropy", metrics=["AUC"]
    )
    return model


def _built(model: keras.Model) -> keras.Model:
    """Builds a model's optimizer; returns the model."""
    model.optimizer.build(model.trainable_variables)
    return model


def _fit(model: keras.Model, data: Any) -> None:
    model.fit(data, steps_per_epoch=4, verbose=0)


def _save(model: keras.Model, path: pathlib.Path) -> None:
    if path.suffix == ".keras":
        model.save(path)
    elif path.suffix == ".json":
        # The table and its slot have 16 kB each, and do not fit into one file.
        model.save_weights(path, max_shard_size=20_000 / 2**30)
    else:
        model.save_weights(path)


def _values(model: keras.Model) -> list[np.ndarray]:
    return [v.numpy() for v in [*model.weights, *model.optimizer.variables]]


def _assert_equal(
    values: list[np.ndarray],
    truth: list[np.ndarray],
    rtol: float = 0.0,
    atol: float = 0.0,
) -> None:
    for value, expected in zip(values, truth, strict=True):
        np.testing.assert_allclose(value, expected, rtol=rtol, atol=atol)


@pytest.mark.compat
@pytest.mark.parametrize("form", ["weights.h5", "weights.json", "keras"])
@pytest.mark.sample(cases=1)
def test_a_file_fits_any_number_of_shards_and_one_process(
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    form: str,
) -> None:
    path = tmp_path / f"model.{form}"
    first = _strategy(cluster, 3)
    with first.scope():
        saved = _built(_model(1))
    _fit(saved, tfps.DatasetCreator(_dataset))
    _save(saved, path)
    expected = _values(saved)
    tfps.ClusterCoordinator(first).close()

    second = _strategy(cluster, 2)
    alone = _built(_model(2))
    with second.scope():
        ours = _built(_model(3))
    for model in (alone, ours):
        model.load_weights(path)
        _assert_equal(_values(model), expected)
    if form == "keras":
        with second.scope():
            ours = keras.saving.load_model(path)
        alone = keras.saving.load_model(path)
        _assert_equal(_values(ours), expected)
    assert len(ours.layers[0].embeddings.value.variables) == 2
    _fit(alone, _dataset())
    _fit(ours, tfps.DatasetCreator(_dataset))
    tfps.ClusterCoordinator(second).close()
    _assert_equal(_values(ours), _values(alone), rtol=1e-4, atol=1e-6)
    assert not np.array_equal(_values(ours)[0], expected[0])


@pytest.mark.parametrize("form", ["weights.h5", "weights.json", "keras"])
@pytest.mark.sample(cases=1)
def test_inside_of_the_scope_it_is_the_same(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path, form: str
) -> None:
    path = tmp_path / f"model.{form}"
    strategy = _strategy(cluster, 3)
    with strategy.scope():
        saved = _built(_model(1))
        ours = _built(_model(2))
    _fit(saved, tfps.DatasetCreator(_dataset))
    expected = _values(saved)
    with strategy.scope():
        _save(saved, path)
        ours.load_weights(path)
    alone = _built(_model(3))
    alone.load_weights(path)
    for model in (alone, ours, saved):
        _assert_equal(_values(model), expected)
    assert len(ours.layers[0].embeddings.value.variables) == 3
    _fit(alone, _dataset())
    _fit(ours, tfps.DatasetCreator(_dataset))
    tfps.ClusterCoordinator(strategy).close()
    _assert_equal(_values(ours), _values(alone), rtol=1e-4, atol=1e-6)


# Options of the saved model, by the part that is smaller in the program.
_OTHER_SHAPES: dict[str, dict[str, int]] = {
    "embedding": {"num_rows": _ROWS + 100},
    "dense": {"num_units": 24},
}


@pytest.mark.parametrize("form", ["weights.h5", "weights.json"])
@pytest.mark.parametrize("larger", _OTHER_SHAPES)
@pytest.mark.sample(cases=1)
def test_layers_of_another_shape_are_left_out_on_request(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path, form: str, larger: str
) -> None:
    path = tmp_path / f"model.{form}"
    saved = _built(_model(1, **_OTHER_SHAPES[larger]))
    _fit(saved, _dataset())
    _save(saved, path)
    fresh = _model(2)
    alone = _built(_model(2))
    strategy = _strategy(cluster, 3)
    with strategy.scope():
        ours = _built(_model(2))
    for model in (alone, ours):
        with pytest.raises(ValueError, match="shape"):
            model.load_weights(path)
        model.set_weights(fresh.get_weights())
        with pytest.warns(UserWarning, match="could not be loaded"):
            model.load_weights(path, skip_mismatch=True)
    _assert_equal(_values(ours), _values(alone))
    # A layer that does not fit is unchanged, any other is restored.
    for layer, in_file, untouched in zip(
        ours.layers, saved.layers, fresh.layers, strict=True
    ):
        shapes = [[w.shape for w in each.weights] for each in (layer, in_file)]
        source = in_file if shapes[0] == shapes[1] else untouched
        _assert_equal(layer.get_weights(), source.get_weights())
    _fit(alone, _dataset())
    _fit(ours, tfps.DatasetCreator(_dataset))
    tfps.ClusterCoordinator(strategy).close()
    _assert_equal(_values(ours), _values(alone), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("exporter", ["one process", "the cluster"])
@pytest.mark.sample(cases=1)
def test_a_table_begins_with_rows_of_a_saved_model(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path, exporter: str
) -> None:
    """These are all rows of an equal table, or the first of a larger one."""
    strategy = _strategy(cluster, 3)
    alone = _built(_model(1))
    with strategy.scope():
        ours = _built(_model(1))
    for num_rows in (_ROWS, _ROWS + 100):
        if exporter == "the cluster":
            with strategy.scope():
                exported = _model(2, num_rows=num_rows)
        else:
            exported = _model(2, num_rows=num_rows)
        exported.layers[0].embeddings.assign(
            np.random.default_rng(num_rows).normal(size=(num_rows, 8))
        )
        exported.export(tmp_path / str(num_rows), verbose=False)
        loaded = tf.saved_model.load(tmp_path / str(num_rows))
        (table,) = [v for v in loaded.variables if v.shape == (num_rows, 8)]
        value = table if num_rows == _ROWS else table[:_ROWS]
        for model in (alone, ours):
            model.layers[0].embeddings.assign(value)
        expected = exported.layers[0].embeddings.numpy()[:_ROWS]
        np.testing.assert_array_equal(_values(ours)[0], expected)
        _assert_equal(_values(ours), _values(alone))
    assert len(ours.layers[0].embeddings.value.variables) == 3
    _fit(alone, _dataset())
    _fit(ours, tfps.DatasetCreator(_dataset))
    tfps.ClusterCoordinator(strategy).close()
    _assert_equal(_values(ours), _values(alone), rtol=1e-4, atol=1e-6)


@pytest.mark.compat
def test_a_checkpoint_fits_any_number_of_shards_and_one_process(
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A table has many slices, and is restored in place; the kernel, too.
    monkeypatch.setattr(saved_form, "_SLICE_BYTES", 1000)
    monkeypatch.setattr(saved_form, "_ALIGNED_ROWS", 1)
    first = _strategy(cluster, 3)
    with first.scope():
        saved = _model(1)
    _fit(saved, tfps.DatasetCreator(_dataset))
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=saved), tmp_path / "managed", max_to_keep=1
    )

    def refuse(*args: Any, **kwargs: Any) -> Any:
        pytest.fail("a table is read by the chief")

    with monkeypatch.context() as patch:
        patch.setattr(shard_reader, "read_whole", refuse)
        patch.setattr(RemoteVariable, "fetch_rows", refuse)
        with first.scope():
            manager.save()
        path = manager.save()
    truth = _values(saved)
    tfps.ClusterCoordinator(first).close()

    second = _strategy(cluster, 2)
    alone = _model(2)
    with second.scope():
        ours = _model(3)
    # Our optimizer's slots are made later, and restored then.
    restored = tf.train.Checkpoint(model=ours).restore(path)
    _built(alone)
    tf.train.Checkpoint(model=alone).restore(path).assert_consumed()
    _assert_equal(_values(alone), truth)
    _fit(alone, _dataset())
    _fit(ours, tfps.DatasetCreator(_dataset))
    restored.assert_consumed()
    _assert_equal(_values(ours), _values(alone), rtol=1e-4, atol=1e-6)
    assert not np.array_equal(_values(ours)[0], truth[0])

    # The way back: into a model with slots, and from a process without a
    # cluster, read on the chief's device.
    tf.train.Checkpoint(model=ours).restore(path).assert_consumed()
    _assert_equal(_values(ours), truth)
    path = tf.train.Checkpoint(model=alone).write(str(tmp_path / "alone"))
    on_chief = tf.train.CheckpointOptions(
        experimental_io_device="/job:chief/replica:0/task:0/device:CPU:0"
    )
    tf.train.Checkpoint(model=ours).read(path, on_chief).assert_consumed()
    _assert_equal(_values(ours), _values(alone))

    # It is written while training goes on, with the values of the call.
    options = tf.train.CheckpointOptions(enable_async=True)
    checkpoint = tf.train.Checkpoint(model=ours)
    for name in ("first", "second"):
        before = _values(ours)
        checkpoint.write(str(tmp_path / name), options)
        _fit(ours, tfps.DatasetCreator(_dataset))
        checkpoint.sync()
        restored = tf.train.Checkpoint(model=alone).read(str(tmp_path / name))
        restored.assert_existing_objects_matched().expect_partial()
        _assert_equal(_values(alone), before)
    # TensorFlow only ends the writing thread with the process.
    checkpoint._async_checkpointer()._join_async_save_thread()
    tfps.ClusterCoordinator(second).close()


def test_other_files_and_arrays_of_keras(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    strategy = _strategy(cluster, 3)
    with strategy.scope():
        ours = _built(_model(1))
    weights = [value.numpy() for value in ours.weights]
    # A folder, and the legacy format, which loads without slots.
    keras.saving.save_model(ours, tmp_path / "folder", zipped=False)
    ours.save(tmp_path / "model.h5")
    for name in ("folder", "model.h5"):
        alone = keras.saving.load_model(tmp_path / name)
        with strategy.scope():
            again = keras.saving.load_model(tmp_path / name)
        assert len(again.layers[0].embeddings.value.variables) == 3
        for model in (alone, again):
            _assert_equal([v.numpy() for v in model.weights], weights)
    # Arrays, and from one model to another.
    alone = _model(2)
    ours.set_weights(alone.get_weights())
    _assert_equal(ours.get_weights(), alone.get_weights())
    table = again.layers[0].embeddings
    for value in (
        alone.layers[0].embeddings,
        np.ones(table.shape, "float32"),
        tf.fill(table.shape, 2.0),
        ours.layers[0].embeddings,
    ):
        table.assign(value)
        np.testing.assert_array_equal(table.numpy(), np.asarray(value))
    tfps.ClusterCoordinator(strategy).close()
