import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin._compat.keras import set_value
from tfps_plugin.training.patches import hooks
from tfps_plugin.variables import testing

pytestmark = pytest.mark.compat

_ROWS = 11


def _model() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            keras.layers.Embedding(_ROWS, 3, name="table"),
            keras.layers.Flatten(),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1, name="dense"),
        ]
    )


def _shapes(path: pathlib.Path) -> list[tuple[int, ...]]:
    prefix = str(path / "variables/variables")
    return sorted(
        tuple(shape)
        for name, shape in tf.train.list_variables(prefix)
        if name != "_CHECKPOINTABLE_OBJECT_GRAPH"
    )


def test_variables_of_ours_are_exported_once(tmp_path: pathlib.Path) -> None:
    hooks.install()
    model, plain = _model(), _model()
    table, dense = model.layers[0].embeddings, model.layers[-1].kernel
    set_value(table, testing.sharded_variable(table.numpy(), 3))
    set_value(dense, testing.remote_variable(dense.numpy()))
    model.export(tmp_path / "ours", verbose=False)
    plain.export(tmp_path / "plain", verbose=False)
    ours, all_plain = _shapes(tmp_path / "ours"), _shapes(tmp_path / "plain")
    # Keras has each variable of a layer twice, except ours.
    for shape in ((_ROWS, 3), (6, 1)):
        assert all_plain.count(shape) == 2
        assert ours.count(shape) == 1
    assert ours.count((6,)) == all_plain.count((6,))
    loaded = tf.saved_model.load(str(tmp_path / "ours"))
    assert [v.shape for v in loaded.variables] == [
        v.shape for v in plain.variables
    ]
    ids = np.array([[0, 10], [3, 3]], "int32")
    np.testing.assert_allclose(loaded.serve(ids), plain(ids), rtol=1e-6)
    # A copy into another model: a warm start.
    warm = _model()
    warm.set_weights([np.zeros(v.shape) for v in warm.weights])
    warm.layers[0].embeddings.assign(loaded.variables[0])
    np.testing.assert_array_equal(
        warm.layers[0].embeddings.numpy(), table.numpy()
    )


def test_a_tracked_table_need_not_be_a_layers(tmp_path: pathlib.Path) -> None:
    hooks.install()
    value = np.arange(22, dtype="float32").reshape(_ROWS, 2)
    table = testing.sharded_variable(value, 3)
    archive = keras.export.ExportArchive()
    archive.add_endpoint(
        "rows",
        lambda ids: tf.gather(table, ids),
        [tf.TensorSpec([None], tf.int32)],
    )
    archive.write_out(tmp_path, verbose=False)
    loaded = tf.saved_model.load(str(tmp_path))
    rows = loaded.rows(tf.constant([10, 0]))
    np.testing.assert_array_equal(rows, value[[10, 0]])
    assert _shapes(tmp_path) == [(_ROWS, 2)]
