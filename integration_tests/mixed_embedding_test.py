"""Tests of one layer with tables that have a vocabulary and tables without.

Two tables without a vocabulary are stacked, and meet the same ids. The truth is
`keras.layers.Embedding` in one process, with the same first rows and the places
of ids as row numbers.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import shared_optimizers
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import serving
from tfps_plugin.variables.saving import shard_reader

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_BATCH = 8
_RANDOM = np.random.default_rng(4)
_POOL = _RANDOM.integers(-(2**63), 2**63 - 1, 30)
_PLACES = _RANDOM.integers(0, len(_POOL), (6 * _BATCH, 3))
_ADS = _RANDOM.integers(0, 20, len(_PLACES))
_TARGETS = _RANDOM.integers(0, 2, (len(_PLACES), 1)).astype("float32")
_FIRST = keras.initializers.RandomNormal(stddev=0.1, seed=9)

Make = Callable[..., tfps.ParameterServerStrategy]


def _layer(num_dynamic: int = 1) -> tfps.layers.DistributedEmbedding:
    tables = {"ad": tfps.layers.TableConfig("ads", 20, 4, _FIRST)}
    for number in range(num_dynamic):
        tables[f"item{number}"] = tfps.layers.TableConfig(
            f"items{number}",
            None,
            4,
            _FIRST,
            combiner="sum",
            capacity=400 + 300 * number,
        )
    return tfps.layers.DistributedEmbedding(
        {
            name: tfps.layers.FeatureConfig(
                name,
                table,
                (None,) if name == "ad" else (None, 3),
                (None, 4),
            )
            for name, table in tables.items()
        },
        name="embed",
    )


def _model(embed: Any, optimizer: Any) -> keras.Model:
    inputs = {
        "ad": keras.Input((), dtype="int64", name="ad"),
        "item0": keras.Input((3,), dtype="int64", name="item0"),
        "item1": keras.Input((3,), dtype="int64", name="item1"),
    }
    rows = embed(inputs)
    outputs = keras.layers.Dense(
        1, kernel_initializer=keras.initializers.RandomNormal(seed=2)
    )(keras.layers.Concatenate()([rows[name] for name in inputs]))
    model = keras.Model(inputs, outputs)
    model.compile(optimizer, "mse")
    return model


def _mixed() -> keras.Model:
    return _model(_layer(2), keras.optimizers.Adagrad(0.2))


def _inputs(items: np.ndarray) -> dict[str, np.ndarray]:
    # Every id is in both tables, beside others.
    return {"ad": _ADS, "item0": items, "item1": items[::-1]}


def _fit(model: keras.Model, items: np.ndarray, epochs: int = 3) -> list[float]:
    losses: list[float] = model.fit(
        _inputs(items),
        _TARGETS,
        batch_size=_BATCH,
        epochs=epochs,
        shuffle=False,
        verbose=0,
    ).history["loss"]
    return losses


@functools.cache
def _in_one_process() -> tuple[list[float], list[np.ndarray]]:
    """Returns losses, and of each table the row of each id of the pool."""
    ads = keras.layers.Embedding(20, 4, _FIRST)
    items = [keras.layers.Embedding(len(_POOL), 4) for _ in range(2)]

    def embed(inputs: Any) -> Any:
        return {"ad": ads(inputs["ad"])} | {
            f"item{number}": keras.ops.sum(table(inputs[f"item{number}"]), 1)
            for number, table in enumerate(items)
        }

    optimizer = shared_optimizers.summing(keras.optimizers.Adagrad(0.2))
    model = _model(embed, optimizer)
    fresh = tfps.layers.DynamicEmbedding(4, _FIRST, capacity=400)
    for table in items:
        table.embeddings.assign(fresh(tf.constant(_POOL), training=False))
    losses = _fit(model, _PLACES)
    return losses, [table.embeddings.numpy() for table in items]


def test_workers_in_step_have_the_numbers_of_one_process(make: Make) -> None:
    losses, rows_of_each = _in_one_process()
    with make(sparse_update="exact", consistency=tfps.Sync()).scope():
        model = _mixed()
    np.testing.assert_allclose(_fit(model, _POOL[_PLACES]), losses, rtol=1e-4)
    for number, rows in enumerate(rows_of_each):
        table = model.get_layer("embed").table(f"items{number}")
        ids, found = table.export()
        places = np.array([list(_POOL).index(one) for one in ids])
        assert sorted(places) == sorted(np.unique(_PLACES))
        np.testing.assert_allclose(found, rows[places], rtol=1e-3, atol=1e-5)


def test_workers_at_their_own_pace_learn(make: Make) -> None:
    with make(consistency=tfps.Async()).scope():
        model = _mixed()
    losses = _fit(model, _POOL[_PLACES], epochs=6)
    assert losses[-1] < losses[0]
    table = model.get_layer("embed").table("items0")
    assert table.size() == len(np.unique(_PLACES))
    model.evaluate(_inputs(_POOL[_PLACES] + 1), _TARGETS, verbose=0)
    assert table.size() == len(np.unique(_PLACES)), "only training makes rows"


@pytest.mark.parametrize("block_bytes", [shard_reader.BLOCK_BYTES, 1000])
def test_saved_rows_are_loaded_anywhere(
    make: Make,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    block_bytes: int,
) -> None:
    monkeypatch.setattr(shard_reader, "BLOCK_BYTES", block_bytes)
    with make(2, consistency=tfps.Sync()).scope():
        model = _mixed()
    _fit(model, _POOL[_PLACES])
    path = tfps.Checkpoint(model=model).save(tmp_path / "saved")
    model.save(tmp_path / "model.keras")
    inputs = _inputs(_POOL[_PLACES])
    predicted = model.predict(inputs, verbose=0)
    losses = _fit(model, _POOL[_PLACES])
    with make(3, consistency=tfps.Sync()).scope():
        restored = _mixed()
        restored.optimizer.build(restored.trainable_variables)
    tfps.Checkpoint(model=restored).restore(path)
    plain = keras.models.load_model(tmp_path / "model.keras")
    for other in (restored, plain):
        np.testing.assert_allclose(
            other.predict(inputs, verbose=0), predicted, atol=1e-6
        )
        table = other.get_layer("embed").table("items0")
        assert table.size() == len(np.unique(_PLACES))
    # Slots belong to the same ids.
    np.testing.assert_allclose(
        _fit(restored, _POOL[_PLACES]), losses, rtol=1e-4
    )


def test_tables_of_both_kinds_are_exported(
    make: Make, tmp_path: pathlib.Path
) -> None:
    with make(consistency=tfps.Sync()).scope():
        model = _mixed()
    embed = model.get_layer("embed")

    def require_equal(tables: serving.Tables) -> None:
        for name in ("items0", "items1"):
            ids, rows = embed.table(name).export()
            exported = tables[f"embed/{name}"]
            assert exported.ids.tolist() == sorted(ids)
            np.testing.assert_array_equal(exported.lookup(ids), rows)
        np.testing.assert_array_equal(
            tables["embed/ads"].rows, embed.get_embedding_tables()["ads"]
        )
        # None of these ids is in a batch.
        items = _POOL[_PLACES[:3]] + 1
        inputs = {"ad": _ADS[:3], "item0": items, "item1": items}
        found = embed({k: tf.constant(v) for k, v in inputs.items()})
        np.testing.assert_allclose(
            tables["embed/items0"].lookup(items).sum(1),
            found["item0"],
            rtol=1e-6,
        )
        np.testing.assert_array_equal(
            tables["embed/ads"].lookup(inputs["ad"]), found["ad"]
        )
        # Neither rows, nor what tells whose they are.
        assert sorted(map(np.ndim, tables.dense.values())) == [1, 2]

    tfps.export_changes(model, tmp_path)
    tables = serving.Tables(tmp_path)
    require_equal(tables)
    export = tfps.callbacks.ExportChanges(tmp_path, save_freq=2)
    model.fit(
        _inputs(_POOL[_PLACES]),
        _TARGETS,
        batch_size=_BATCH,
        verbose=0,
        callbacks=[export],
    )
    tables.refresh()
    require_equal(tables)
    # The callback is another exporter: this begins with a base.
    tfps.export_changes(model, tmp_path)
    # Eight rows of one table change, three and two of the others.
    model.fit(
        {
            "ad": np.arange(8),
            "item0": np.tile(_POOL[:3], (8, 1)),
            "item1": np.tile(_POOL[[0, 4, 4]], (8, 1)),
        },
        _TARGETS[:8],
        batch_size=_BATCH,
        verbose=0,
    )
    changes = tfps.export_changes(model, tmp_path, compact_at=10.0)
    assert changes is not None
    assert (changes.is_base, changes.num_rows) == (False, 8 + 3 + 2)
    tables.refresh()
    require_equal(tables)


def test_all_tables_share_the_messages_of_a_lookup(make: Make) -> None:
    strategy = make()

    def crossing(num_dynamic: int) -> tuple[int, int]:
        with strategy.scope():
            embed: Any = _layer(num_dynamic)
            embed.build()
        inputs = {"ad": tf.TensorSpec([None], tf.int64)} | {
            f"item{number}": tf.TensorSpec([None, 3], tf.int64)
            for number in range(num_dynamic)
        }
        explanation = strategy.explain(
            tf.function(functools.partial(embed, training=True)),
            [inputs],
            print_fn=None,
        )
        sent = [each for body in explanation.bodies for each in body.sent]
        return (
            sum(each.num_parcels for each in sent if each.destination),
            sum(each.num_parcels for each in sent if each.source),
        )

    # One message of ids to each of two ps, and one of rows from each.
    assert crossing(0) == crossing(1) == crossing(3) == (2, 2)
