"""Tests of tables with and without a vocabulary in one layer."""

import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors

_FIRST = keras.initializers.RandomNormal(seed=9)
_LOWEST = -(2**63)
_IDS = np.array([[5, _LOWEST, 7], [2**62, 5, 5]])
_WEIGHTS = np.array([[1.0, 2.0, 0.5], [3.0, 1.0, 0.0]], "float32")


def _table(name: str = "items", **options: Any) -> tfps.layers.TableConfig:
    return tfps.layers.TableConfig(
        name, None, 4, _FIRST, **({"capacity": 100} | options)
    )


def _feature(
    name: str, table: tfps.layers.TableConfig, *shape: int | None
) -> tfps.layers.FeatureConfig:
    return tfps.layers.FeatureConfig(
        name, table, (None, *shape), (None, table.embedding_dim)
    )


def _mixed(**options: Any) -> tfps.layers.DistributedEmbedding:
    fixed = tfps.layers.TableConfig("ads", 10, 4, _FIRST)
    items = _table(**options)
    return tfps.layers.DistributedEmbedding(
        {
            "ad": _feature("ad", fixed),
            "item": _feature("item", items),
            "seen": _feature("seen", items, None),
        },
        name="embed",
    )


def _inputs() -> dict[str, tf.Tensor]:
    return {
        "ad": tf.constant([3, 9]),
        "item": tf.constant([7, -1], tf.int64),
        "seen": tf.constant(_IDS),
    }


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
@pytest.mark.parametrize("kind", ["dense", "ragged", "sparse"])
def test_outputs_are_those_of_layers_of_their_own(
    combiner: str, kind: str
) -> None:
    inputs: dict[str, Any] = _inputs()
    weights: dict[str, Any] = {"ad": None, "item": None}
    weights["seen"] = tf.constant(_WEIGHTS)
    if kind == "ragged":
        inputs["seen"] = tf.RaggedTensor.from_tensor(inputs["seen"])
        weights["seen"] = tf.RaggedTensor.from_tensor(weights["seen"])
    if kind == "sparse":
        places = [[row, column] for row in range(2) for column in range(3)]
        inputs["seen"] = tf.SparseTensor(places, _IDS.ravel(), [2, 3])
        weights["seen"] = tf.SparseTensor(places, _WEIGHTS.ravel(), [2, 3])
    embed = _mixed(combiner=combiner)
    outputs = embed(inputs, weights, training=True)

    items = tfps.layers.DynamicEmbedding(4, _FIRST, capacity=100, name="items")
    rows = items(tf.constant(_IDS)).numpy()
    divisors = {
        "sum": 1.0,
        "mean": _WEIGHTS.sum(1, keepdims=True),
        "sqrtn": np.sqrt(np.square(_WEIGHTS).sum(1, keepdims=True)),
    }
    expected = (rows * _WEIGHTS[..., None]).sum(1) / divisors[combiner]
    np.testing.assert_allclose(outputs["seen"], expected, rtol=1e-5)
    np.testing.assert_array_equal(outputs["item"], items(inputs["item"]))
    fixed = keras.layers.Embedding(10, 4, _FIRST)
    np.testing.assert_array_equal(outputs["ad"], fixed(inputs["ad"]))
    assert embed.table("items").size() == 5


def test_gradients_are_those_of_an_embedding_on_places() -> None:
    embed = _mixed(combiner="sum")
    inputs = _inputs()
    with tf.GradientTape() as tape:
        outputs = embed(inputs)
        loss = tf.add_n([tf.reduce_sum(tf.square(x)) for x in outputs.values()])
    gradients = tape.gradient(loss, embed.trainable_weights)
    keras.optimizers.SGD(0.1).apply(gradients, embed.trainable_weights)

    ids = np.unique([*_IDS.ravel(), 7, -1])
    plain = keras.layers.Embedding(len(ids), 4)
    plain.build()
    plain.embeddings.assign(_mixed()({**inputs, "item": ids})["item"])
    with tf.GradientTape() as tape:
        items = plain(np.searchsorted(ids, [7, -1]))
        seen = tf.reduce_sum(plain(np.searchsorted(ids, _IDS)), 1)
        loss = tf.reduce_sum(items**2) + tf.reduce_sum(seen**2)
    (gradient,) = tape.gradient(loss, plain.trainable_weights)
    keras.optimizers.SGD(0.1).apply([gradient], plain.trainable_weights)
    found, rows = embed.table("items").export()
    np.testing.assert_allclose(
        rows[np.argsort(found)], plain.embeddings, rtol=1e-5
    )


def test_floats_are_ids_of_tables_with_a_vocabulary_only() -> None:
    embed = _mixed()
    inputs = _inputs() | {"ad": tf.constant([3.0, 9.0])}
    np.testing.assert_array_equal(embed(inputs)["ad"], embed(_inputs())["ad"])
    told = "feature 'item' finds.*Received: dtype=float32"
    with pytest.raises(errors.InputError, match=told):
        embed(inputs | {"item": tf.constant([7.0, 1.0])}, training=True)
    shapes = {"ad": (), "item": (), "seen": (3,)}
    given = {name: keras.Input(shape) for name, shape in shapes.items()}
    with pytest.raises(errors.InputError, match=told):
        embed(given)
    assert embed.table("items").size() == 0


def test_only_training_makes_rows() -> None:
    embed = _mixed(unknown="zeros")
    outputs = embed(_inputs(), training=False)
    assert embed.table("items").size() == 0
    np.testing.assert_array_equal(outputs["item"], np.zeros((2, 4)))


def test_all_tables_may_be_without_a_vocabulary() -> None:
    names = _table("names")
    embed = tfps.layers.DistributedEmbedding(
        [_feature("name", names), _feature("other", names)]
    )
    outputs = embed([tf.constant(["a", "b"]), tf.constant(["b", "c"])])
    np.testing.assert_array_equal(outputs[0][1], outputs[1][0])
    assert embed.get_embedding_tables() == {}


def test_a_file_has_the_rows(tmp_path: pathlib.Path) -> None:
    inputs = {
        "ad": keras.Input((), dtype="int32", name="ad"),
        "item": keras.Input((), dtype="int64", name="item"),
        "seen": keras.Input((3,), dtype="int64", name="seen"),
    }
    embed = _mixed(admission=tfps.layers.Admission(1), unknown="shared")
    model = keras.Model(inputs, embed(inputs))
    embed.table("items").import_([7, -1], np.arange(8.0).reshape(2, 4))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    expected, outputs = model(_inputs()), loaded(_inputs())
    for name, output in outputs.items():
        np.testing.assert_array_equal(output, expected[name])
    np.testing.assert_array_equal(outputs["item"], np.arange(8.0).reshape(2, 4))
    saved: dict[str, Any] = {}
    embed.save_own_variables(saved)
    other = _mixed()
    other.build()
    with pytest.raises(ValueError, match="other tables"):
        other.load_own_variables(saved)


def test_a_configuration_makes_the_same_table() -> None:
    table = _table(
        admission=tfps.layers.Admission(2),
        eviction=tfps.layers.Eviction("least_frequent"),
        unknown="shared",
    )
    embed = tfps.layers.DistributedEmbedding(_feature("item", table))
    other = tfps.layers.DistributedEmbedding.from_config(embed.get_config())
    assert other.get_config() == embed.get_config()
    same = tfps.layers.TableConfig.from_config(table.get_config())
    assert same.row_options == table.row_options
    assert _table(capacity=None).capacity == 1_000_000


def test_a_table_may_be_called_table() -> None:
    embed = tfps.layers.DistributedEmbedding(_feature("item", _table("table")))
    embed(tf.constant([1, 2]), training=True)
    assert embed.table("table").size() == 2


@pytest.mark.parametrize(
    "options",
    [
        {"capacity": 5},
        {"unknown": "zeros"},
        {"admission": tfps.layers.Admission()},
        {"eviction": tfps.layers.Eviction()},
    ],
)
def test_a_vocabulary_allows_no_option_of_rows(options: Any) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"vocabulary_size=9, {name}="):
        tfps.layers.TableConfig("ads", 9, 4, **options)


def test_wrong_options_are_refused_by_the_name_of_the_table() -> None:
    for options in ({"capacity": 0}, {"unknown": "ones"}, {"eviction": 3}):
        with pytest.raises(ValueError, match="the table 'items'"):
            _table(**options)


@pytest.mark.parametrize(
    "stacking", [["items", "ads"], [["items", "rare"]]], ids=str
)
def test_only_tables_of_the_same_kind_are_stacked(stacking: Any) -> None:
    ads = tfps.layers.TableConfig("ads", 9, 4)
    rare = _table("rare", admission=tfps.layers.Admission(min_lookups=2))
    with pytest.raises(ValueError, match="equal `admission` and `eviction`"):
        tfps.layers.DistributedEmbedding(
            [
                _feature("item", _table()),
                _feature("ad", ads),
                _feature("r", rare),
            ],
            table_stacking=stacking,
        )


@pytest.mark.parametrize("what", ["records", "waiting"])
def test_names_of_variables_do_not_collide(what: str) -> None:
    with pytest.raises(ValueError, match="another name"):
        tfps.layers.DistributedEmbedding(
            [
                _feature("item", _table()),
                _feature("other", _table(f"items_{what}")),
            ]
        )


def test_tables_are_asked_for_by_their_names() -> None:
    embed = _mixed()
    with pytest.raises(ValueError, match=r"'ads'.*get_embedding_tables"):
        embed.table("ads")
    with pytest.raises(ValueError, match="no table 'x'"):
        embed.table("x")
    with pytest.raises(ValueError, match="before the layer is built"):
        embed.table("items").export()
    embed.build()
    with pytest.raises(errors.InputError, match="table 'items' imports"):
        embed.table("items").import_([7, 7], np.zeros((2, 4)))
