"""Tests of tables by id that are stacked: each is as if it were alone."""

import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin import serving

_LOWEST = -(2**63)
# The same ids in all tables.
_POOL = np.array([_LOWEST, -7, 0, 1, 2, 3, 2**62, 2**63 - 1])
_TABLES: dict[str, dict[str, Any]] = {
    "a": {"capacity": 30, "initializer": keras.initializers.Constant(0.5)},
    "b": {"capacity": 200, "unknown": "shared", "combiner": "sum"},
    "c": {"capacity": 30, "unknown": "zeros"},
}


def _layer(
    stacking: Any = "auto", **options: Any
) -> tfps.layers.DistributedEmbedding:
    tables = {
        name: tfps.layers.TableConfig(
            name,
            None,
            4,
            **(
                {
                    "initializer": keras.initializers.RandomUniform(
                        seed=ord(name)
                    )
                }
                | of_table
                | options
            ),
        )
        for name, of_table in _TABLES.items()
    }
    # Two features look up in "c".
    tables["d"] = tables["c"]
    return tfps.layers.DistributedEmbedding(
        {
            name: tfps.layers.FeatureConfig(name, table, (None, 3), (None, 4))
            for name, table in tables.items()
        },
        table_stacking=stacking,
        name="embed",
    )


def _model(stacking: Any = "auto", **options: Any) -> keras.Model:
    inputs = {
        name: keras.Input((3,), dtype="int64", name=name) for name in "abcd"
    }
    rows = _layer(stacking, **options)(inputs)
    outputs = keras.layers.Dense(
        1, kernel_initializer=keras.initializers.RandomNormal(seed=2)
    )(keras.layers.Concatenate()([rows[name] for name in "abcd"]))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(0.1), "mse")
    return model


def _inputs(seed: int, pool: np.ndarray = _POOL) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.choice(pool, (6, 3)) for name in "abcd"}


def _fit(model: keras.Model, pool: np.ndarray = _POOL) -> list[float]:
    losses: list[float] = model.fit(
        _inputs(1, pool),
        np.ones((6, 1)),
        epochs=3,
        batch_size=4,
        shuffle=False,
        verbose=0,
    ).history["loss"]
    return losses


def _require_equal_rows(model: keras.Model, other: keras.Model) -> None:
    for name in _TABLES:
        found = [
            dict(zip(ids.tolist(), rows.tolist(), strict=True))
            for ids, rows in (
                each.get_layer("embed").table(name).export()
                for each in (model, other)
            )
        ]
        assert found[0] == found[1] != {}


def test_all_tables_are_one_variable() -> None:
    layer = _layer()
    layer.build()
    assert sorted(each.name for each in layer.weights) == [
        "b_unknown",
        "dynamic_stack_0_width_4",
        "dynamic_stack_0_width_4_records",
    ]


@pytest.mark.parametrize("stacking", ["auto", [["a", "b"]]], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"admission": tfps.layers.Admission(2)}], ids=str
)
def test_numbers_are_those_of_tables_of_their_own(
    stacking: Any, options: Any
) -> None:
    model, alone = _model(stacking, **options), _model(None, **options)
    assert _fit(model) == _fit(alone)
    _require_equal_rows(model, alone)
    # Most of these ids have no rows.
    inputs = _inputs(2, np.arange(-40, 40))
    np.testing.assert_array_equal(
        model.predict(inputs, verbose=0), alone.predict(inputs, verbose=0)
    )
    for name in _TABLES:
        table, expected = (
            each.get_layer("embed").table(name) for each in (model, alone)
        )
        assert table.size() == expected.size() > 0
        assert table.statistics() == expected.statistics()


@pytest.mark.parametrize("stacking", ["auto", None])
def test_files_do_not_depend_on_what_is_stacked(
    stacking: Any, tmp_path: pathlib.Path
) -> None:
    model = _model(stacking)
    _fit(model)
    saved: dict[str, Any] = {}
    model.get_layer("embed").save_own_variables(saved)
    for other_stacking in ("auto", None):
        other = _model(other_stacking)
        other.get_layer("embed").load_own_variables(saved)
        _require_equal_rows(model, other)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    _require_equal_rows(model, loaded)


@pytest.mark.parametrize("stacking", ["auto", None])
def test_rows_are_loaded_into_a_layer_that_was_used(stacking: Any) -> None:
    # All of the program's random numbers are the same for both.
    keras.utils.set_random_seed(1)
    model = _model(stacking)
    _fit(model)
    keras.utils.set_random_seed(1)
    other = _model()
    # It has rows for other ids, in the same places.
    _fit(other, pool=_POOL[:-1] + 3)
    saved: dict[str, Any] = {}
    model.get_layer("embed").save_own_variables(saved)
    other.get_layer("embed").load_own_variables(saved)
    _require_equal_rows(model, other)
    layers = [each.get_layer("embed") for each in (model, other)]
    # Some of these ids are new to both.
    inputs = {
        name: tf.constant(ids)
        for name, ids in _inputs(2, np.arange(-8, 8)).items()
    }
    for training in (True, False):
        rows = [layer(inputs, training=training) for layer in layers]
        for name, expected in rows[0].items():
            np.testing.assert_array_equal(rows[1][name], expected)
    _require_equal_rows(model, other)


def test_an_import_reaches_one_table_alone() -> None:
    layer = _layer()
    layer.build()
    ids = np.arange(60, dtype=np.int64)
    rows = np.arange(240.0).reshape(60, 4)
    layer.table("b").import_(ids, rows)
    assert [layer.table(name).size() for name in "abc"] == [0, 60, 0]
    found_ids, found = layer.table("b").export()
    order = np.argsort(found_ids)
    np.testing.assert_array_equal(found_ids[order], ids)
    np.testing.assert_array_equal(found[order], rows)
    with pytest.raises(errors.InputError, match=r"table 'a'.*no room"):
        layer.table("a").import_(
            np.arange(6000), np.zeros((6000, 4), "float32")
        )


def test_each_table_is_exported_by_its_name(tmp_path: pathlib.Path) -> None:
    model = _model()
    _fit(model)
    layer = model.get_layer("embed")

    def require_equal() -> None:
        for name in _TABLES:
            ids, rows = layer.table(name).export()
            exported = tables[f"embed/{name}"]
            assert exported.ids.tolist() == sorted(ids)
            np.testing.assert_array_equal(exported.lookup(ids), rows)

    tfps.export_changes(model, tmp_path)
    tables = serving.Tables(tmp_path)
    require_equal()
    assert sorted(map(np.ndim, tables.dense.values())) == [1, 2, 2]
    # Frees one row of "b", and changes one of "c".
    (stack,) = layer._rows_by_id
    records = stack.variables["records"]
    freed = records.numpy()
    space = stack.table.space
    its = space.cells_of(1, range(space.num_rows))
    place = next(row for cell in its for row in cell if freed[row, 1] > 0)
    freed[place] = 0
    records.assign(freed)
    ids, rows = layer.table("c").export()
    layer.table("c").import_(ids[:1], rows[:1] + 1)
    export = tfps.export_changes(model, tmp_path, compact_at=10.0)
    assert export is not None
    assert (export.num_rows, export.num_removed) == (1, 1)
    tables.refresh()
    require_equal()


def test_a_full_table_is_named() -> None:
    layer = _layer()
    inputs = {name: tf.constant([[1, 2, 3]], tf.int64) for name in "bcd"}
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"b'?\W*a\W.* is full|table \W*a\W* is full",
    ):
        layer(
            inputs | {"a": tf.reshape(tf.range(3000, dtype=tf.int64), (-1, 3))},
            training=True,
        )
