"""Compares with keras_rs.layers.EmbedReduce and keras.layers.Embedding."""

import pathlib
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.training.embedding.config import FeatureConfig
from tfps_plugin.training.embedding.config import TableConfig
from tfps_plugin.training.embedding.distributed_embedding import (
    DistributedEmbedding,
)

_ROWS = {"small": 11, "large": 50, "wide": 20}
_WIDTHS = {"small": 4, "large": 4, "wide": 6}
_COMBINERS = ("mean", "sum", "sqrtn")

# Kind of input -> shape in the configuration.
_KINDS = {
    "single": (None,),
    "dense": (None, 3),
    "one": (None, 1),
    "flat": (None, 1),
    "ragged": (None, None),
    "sparse": (None, 5),
    "single_sparse": (None,),
    "flat_sparse": (None, 1),
}
_FEATURES = [(kind, table) for table in _ROWS for kind in _KINDS]


def _initializer(table: str) -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(seed=len(table))


def _layer(combiner: str = "mean", **options: Any) -> DistributedEmbedding:
    """Makes a layer with every kind of input on every table."""
    tables = {
        name: TableConfig(
            name,
            rows,
            _WIDTHS[name],
            _initializer(name),
            combiner=combiner,
        )
        for name, rows in _ROWS.items()
    }
    return DistributedEmbedding(
        {
            f"{kind}_{table}": FeatureConfig(
                f"{kind}_{table}",
                tables[table],
                _KINDS[kind],
                (None, _WIDTHS[table]),
            )
            for kind, table in _FEATURES
        },
        **options,
    )


def _ids(kind: str, rows: int, dtype: str) -> Any:
    random = np.random.default_rng(rows)
    if kind == "ragged":
        return tf.ragged.constant(
            [[1, 1, rows - 1], [], [3], [0, 2]], ragged_rank=1, dtype=dtype
        )
    if kind == "sparse":
        return tf.SparseTensor(
            [[0, 1], [0, 4], [2, 0], [2, 1], [2, 2]],
            tf.constant([rows - 1, 2, 1, 1, 0], dtype),
            [4, 5],
        )
    if kind in ("single_sparse", "flat_sparse"):
        return tf.SparseTensor(
            [[0], [3]], tf.constant([rows - 1, 2], dtype), [4]
        )
    shape = {"single": (4,), "flat": (4,), "dense": (4, 3), "one": (4, 1)}[kind]
    # Keras counts negative ids from the end.
    return tf.constant(random.integers(-rows, rows, shape), dtype)


def _weights(ids: Any) -> Any:
    def draw(shape: Any) -> tf.Tensor:
        return tf.constant(
            np.random.default_rng(1).uniform(0.0, 2.0, shape), "float32"
        )

    if isinstance(ids, tf.RaggedTensor):
        return ids.with_values(draw(ids.values.shape))
    if isinstance(ids, tf.SparseTensor):
        return tf.SparseTensor(
            ids.indices, draw(ids.values.shape), ids.dense_shape
        )
    return draw(ids.shape)


def _inputs() -> dict[str, Any]:
    return {
        # Both dtypes of ids side by side.
        f"{kind}_{table}": _ids(
            kind, _ROWS[table], "int64" if kind == "dense" else "int32"
        )
        for kind, table in _FEATURES
    }


def _loss(outputs: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns a loss in which each number of each output counts differently."""
    return tf.add_n(
        [
            tf.reduce_sum(
                tf.sin(outputs[name] * 9.0)
                * tf.cast(tf.range(1, outputs[name].shape[-1] + 1), tf.float32)
            )
            for name in sorted(outputs)
        ]
    )


@pytest.mark.compat
@pytest.mark.sample(cases=6)
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", _COMBINERS)
def test_outputs_and_gradients_are_those_of_separate_layers(
    combiner: str, weighted: bool, traced: bool
) -> None:
    keras_rs = pytest.importorskip("keras_rs")
    ours = _layer(combiner)
    ours.build()
    theirs = {
        table: keras_rs.layers.EmbedReduce(
            rows,
            _WIDTHS[table],
            embeddings_initializer=_initializer(table),
            combiner=combiner,
        )
        for table, rows in _ROWS.items()
    }
    inputs = _inputs()
    weights = (
        {name: _weights(ids) for name, ids in inputs.items()}
        if weighted
        else None
    )

    def run_ours() -> Any:
        with tf.GradientTape() as tape:
            outputs = ours(inputs, weights)
            loss = _loss(outputs)
        found = tape.gradient(loss, ours.trainable_variables)
        return outputs, [tf.convert_to_tensor(each) for each in found]

    with tf.GradientTape() as tape:
        expected = {
            f"{kind}_{table}": theirs[table](
                inputs[f"{kind}_{table}"],
                weights and weights[f"{kind}_{table}"],
            )
            for kind, table in _FEATURES
        }
        loss = _loss(expected)
    variables = [theirs[table].embeddings for table in _ROWS]
    expected_gradients = dict(
        zip(
            _ROWS,
            map(tf.convert_to_tensor, tape.gradient(loss, variables)),
            strict=True,
        )
    )
    outputs, gradients = (tf.function(run_ours) if traced else run_ours)()
    assert outputs.keys() == expected.keys()
    for name, output in outputs.items():
        np.testing.assert_allclose(
            output, expected[name], rtol=1e-6, atol=1e-7, err_msg=name
        )
    # Tables are stacked in the order of their names.
    stacked, wide = gradients
    split = _ROWS["large"]
    for table, gradient in (
        ("large", stacked[:split]),
        ("small", stacked[split:]),
        ("wide", wide),
    ):
        np.testing.assert_allclose(
            gradient, expected_gradients[table], rtol=1e-5, atol=1e-6
        )


def test_tables_start_by_default_as_those_of_embedding_layers() -> None:
    keras.utils.set_random_seed(8)
    tables = [TableConfig(name, 50, 16) for name in ("ads", "users")]
    layer = DistributedEmbedding(
        [FeatureConfig(t.name, t, (None,), (None, 16)) for t in tables]
    )
    layer.build()
    keras.utils.set_random_seed(8)
    expected = [keras.layers.Embedding(50, 16) for _ in tables]
    for table, embedding in zip(tables, expected, strict=True):
        embedding.build()
        np.testing.assert_array_equal(
            layer.get_embedding_tables()[table.name], embedding.embeddings
        )


@pytest.mark.parametrize("stacking", ["auto", None, ["small", "large"]])
def test_tables_start_as_those_of_separate_layers(stacking: Any) -> None:
    layer = _layer(table_stacking=stacking)
    layer.build()
    assert len(layer.weights) == (3 if stacking is None else 2)
    tables = layer.get_embedding_tables()
    assert sorted(tables) == sorted(_ROWS)
    for name, table in tables.items():
        np.testing.assert_array_equal(
            table, _initializer(name)((_ROWS[name], _WIDTHS[name]))
        )


def _simple(**options: Any) -> DistributedEmbedding:
    """Makes two tables of one width, in a nested structure of features."""
    ads, users = TableConfig("ads", 10, 4), TableConfig("users", 3, 4)
    return DistributedEmbedding(
        {
            "ads": [
                FeatureConfig("shown", ads, (None,), (None, 4)),
                FeatureConfig("seen", ads, (None, 2), (None, 4)),
            ],
            "user": FeatureConfig("user", users, (None,), (None, 4)),
        },
        **options,
    )


def _simple_inputs(**changed: Any) -> dict[str, Any]:
    return {
        "ads": [np.array([1, 9]), np.array([[0, 1], [2, 2]])],
        "user": np.array([0, 2]),
        **changed,
    }


@pytest.mark.compat
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"user": np.array([0, 3])}, r"\[user\] .*\[users\] .*\[3\] .*ids.*3"),
        ({"user": np.array([-4, 0])}, r"\[user\].*\[users\].*\[3\].*\[-4\]"),
        # Would be in range of the stack if it were truncated to int32.
        ({"user": np.array([1 << 32, 0])}, r"\[user\].*\[4294967296\]"),
        (
            {"ads": [np.array([1, 10]), np.array([[0, 1], [2, -11]])]},
            r"\[seen shown\].*\[ads ads\].*\[10 10\].*\[-11 10\]"
            r"|\[shown seen\].*\[ads ads\].*\[10 10\].*\[10 -11\]",
        ),
    ],
)
def test_ids_of_another_table_are_refused(
    traced: bool, changed: dict[str, Any], message: str
) -> None:
    layer = _simple()
    look_up = tf.function(layer) if traced else layer
    look_up(_simple_inputs())
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        look_up(_simple_inputs(**changed))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"user": None}, "nothing for 'user'"),
        ({"ads": [np.array([1, 9])]}, "nothing for 'ads/1'"),
        ({"item": np.array([1, 9])}, "unknown 'item'"),
        ({"user": np.array([[0], [2]])}, r"'user'.*\(None,\).*\(2, 1\)"),
        (
            {"ads": [np.array([1, 9]), np.array([[0, 1, 2]])]},
            r"'seen'.*\(None, 2\).*\(1, 3\)",
        ),
        ({"user": tf.constant(["a", "b"])}, "integer ids.*StringLookup"),
    ],
)
def test_other_inputs_than_configured_are_refused(
    changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.InputError, match=message):
        _simple()(_simple_inputs(**changed))


def test_wrong_inputs_are_found_before_tables_are_made() -> None:
    layer = _simple()
    with pytest.raises(errors.InputError, match="nothing for 'ads/0'"):
        layer({"user": np.array([1])})
    assert not layer.built
    with pytest.raises(ValueError, match="no tables before it is built"):
        layer.get_embedding_tables()


_RAGGED = tf.ragged.constant([[1, 2], [3]], ragged_rank=1)
_SPARSE = tf.SparseTensor([[0, 0], [1, 0]], [1, 2], [2, 2])


@pytest.mark.parametrize(
    ("ids", "weights", "message"),
    [
        (_RAGGED, tf.ones([2, 2]), "same kind and shape.*RaggedTensor"),
        (tf.ones([2, 2], "int32"), _RAGGED, "same kind and shape"),
        (_SPARSE, tf.ones([2, 2]), "same kind and shape.*SparseTensor"),
        # keras_rs takes weights of whole examples, and sums for the mean.
        (tf.ones([2, 2], "int32"), tf.ones([2]), r"Received: .*shape \(2,\)"),
        (tf.ones([2, 2], "int32"), tf.ones([2, 1]), "same kind and shape"),
        (_RAGGED, tf.ragged.constant([[1.0], [2.0, 3.0]]), "rows of its ids"),
        (
            _SPARSE,
            tf.SparseTensor([[0, 0], [1, 1]], [1.0, 2.0], [2, 2]),
            "indices of its ids",
        ),
        (
            _SPARSE,
            tf.SparseTensor([[0, 0]], [1.0], [2, 2]),
            "indices of its ids",
        ),
    ],
)
def test_weights_that_do_not_belong_to_the_ids_are_refused(
    ids: Any, weights: Any, message: str
) -> None:
    layer = DistributedEmbedding(
        FeatureConfig("ad", TableConfig("ads", 9, 4), (None, 2), (None, 4))
    )
    with pytest.raises(
        (errors.InputError, tf.errors.InvalidArgumentError), match=message
    ):
        layer(ids, weights)


def test_weights_of_another_shape_are_refused_when_it_is_known() -> None:
    layer = DistributedEmbedding(
        FeatureConfig("ad", TableConfig("ads", 9, 4), (None, None), (None, 4))
    )
    layer.build()

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], tf.int32),
            tf.TensorSpec([None, None], tf.float32),
        ]
    )
    def look_up(ids: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        return layer(ids, weights)

    assert look_up(tf.ones([3, 2], "int32"), tf.ones([3, 2])).shape == (3, 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape of its"):
        look_up(tf.ones([3, 2], "int32"), tf.ones([3, 1]))


def test_a_feature_may_have_no_weights_beside_others_that_have() -> None:
    layer = _simple()
    inputs = _simple_inputs()
    plain = layer(inputs)
    weights = tf.constant([[1.0, 3.0], [1.0, 1.0]])
    outputs = layer(inputs, {"ads": [None, weights], "user": None})
    rows = layer.get_embedding_tables()["ads"].numpy()
    np.testing.assert_allclose(
        outputs["ads"][1][0], (rows[0] + 3 * rows[1]) / 4, rtol=1e-6
    )
    np.testing.assert_array_equal(outputs["user"], plain["user"])
    with pytest.raises(errors.InputError, match=r"`weights`.*nothing for"):
        layer(inputs, {"ads": [None, weights]})


def test_examples_and_batches_without_ids_get_zeros() -> None:
    layer = DistributedEmbedding(
        FeatureConfig("ad", TableConfig("ads", 9, 4), (None, None), (None, 4))
    )
    none = tf.RaggedTensor.from_row_splits(tf.zeros([0], "int64"), [0, 0, 0])
    np.testing.assert_array_equal(layer(none), np.zeros((2, 4)))
    np.testing.assert_array_equal(
        layer(tf.zeros([2, 0], "int32")), np.zeros((2, 4))
    )
    assert layer(tf.zeros([0, 3], "int32")).shape == (0, 4)


@pytest.mark.compat
def test_outputs_have_the_compute_dtype() -> None:
    layer = _simple(dtype="mixed_float16")
    inputs = _simple_inputs()
    outputs = keras.tree.flatten(layer(inputs))
    assert {output.dtype for output in outputs} == {tf.float16}
    assert {variable.dtype for variable in layer.weights} == {"float32"}
    table = layer.get_embedding_tables()["ads"]
    embedding = keras.layers.Embedding(10, 4, dtype="mixed_float16")
    embedding.build()
    embedding.embeddings.assign(table)
    np.testing.assert_array_equal(
        layer(inputs)["ads"][0], embedding(inputs["ads"][0])
    )
    # Ids as floats, as from a CSV file, must not go through float16.
    large = DistributedEmbedding(
        FeatureConfig("ad", TableConfig("ads", 4099, 1), (None,), (None, 1)),
        dtype="mixed_float16",
    )
    large.build()
    np.testing.assert_allclose(
        large(np.array([4097.0], "float32"))[0],
        large.get_embedding_tables()["ads"][4097],
        rtol=1e-3,
    )


def _functional(layer: DistributedEmbedding) -> keras.Model:
    inputs = {
        "ads": [
            keras.Input((), dtype="int32", name="shown"),
            keras.Input((2,), dtype="int32", name="seen"),
        ],
        "user": keras.Input((), dtype="int32", name="user"),
    }
    outputs = layer(inputs)
    x = keras.layers.Concatenate()(keras.tree.flatten(outputs))
    return keras.Model(inputs, keras.layers.Dense(1)(x))


@pytest.mark.compat
def test_a_functional_model_is_saved_and_loaded(tmp_path: pathlib.Path) -> None:
    model = _functional(_simple(name="embed"))
    path = tmp_path / "model.keras"
    model.save(path)
    again = keras.models.load_model(path)
    np.testing.assert_array_equal(
        again(_simple_inputs()), model(_simple_inputs())
    )
    # The shared table is still one.
    assert sorted(again.get_layer("embed").get_embedding_tables()) == [
        "ads",
        "users",
    ]
    assert again.get_layer("embed").weights[0].shape == (13, 4)


@pytest.mark.timeout(120)
def test_a_process_with_a_strategy_loads_a_file(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "model.keras"
    _functional(_simple(name="embed")).save(path)
    program = f"""
import keras
import tfps_plugin as tfps
tfps.ParameterServerStrategy  # the class alone, no cluster
model = keras.saving.load_model({str(path)!r})
print("Loaded:", type(model.get_layer("embed")).__name__)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "Loaded: DistributedEmbedding" in ended.stdout, ended.stderr


@pytest.mark.compat
def test_weights_are_saved_by_the_names_of_tables(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three rows to a block.
    monkeypatch.setattr(
        "tfps_plugin.training.embedding.distributed_embedding._BLOCK_BYTES",
        3 * 16,
    )
    path = tmp_path / "model.weights.h5"
    stacked = _functional(_simple())
    stacked.save_weights(path)
    separate = _functional(_simple(table_stacking=None))
    separate.load_weights(path)
    assert len(separate.weights) == len(stacked.weights) + 1
    np.testing.assert_array_equal(
        separate(_simple_inputs()), stacked(_simple_inputs())
    )


@pytest.mark.parametrize(
    "saved",
    [
        {"ads": np.zeros((10, 4))},
        {"ads": np.zeros((10, 4)), "users": np.zeros((4, 4))},
        {"ads": np.zeros((10, 4)), "users": np.zeros((3, 4)), "0": np.zeros(1)},
    ],
)
def test_weights_of_other_tables_are_refused(saved: dict[str, Any]) -> None:
    layer = _simple()
    layer.build()
    with pytest.raises(ValueError, match=r"Expected: .*'users': .3, 4"):
        layer.load_own_variables(saved)


def test_one_feature_works_in_a_sequential_model() -> None:
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32", ragged=True),
            DistributedEmbedding(
                FeatureConfig(
                    "ad", TableConfig("ads", 9, 4), (None, None), (None, 4)
                )
            ),
            keras.layers.Dense(2),
        ]
    )
    assert model.output_shape == (None, 2)
    assert model(tf.ragged.constant([[1], [2, 3], []])).shape == (3, 2)


def test_a_table_of_keras_rs_keeps_its_default_initial_values() -> None:
    keras_rs = pytest.importorskip("keras_rs")
    table = keras_rs.layers.TableConfig("ads", 500, 16)
    feature = keras_rs.layers.FeatureConfig("a", table, (2,), (2, 16))
    layer = DistributedEmbedding(feature)
    layer.build()
    values = layer.get_embedding_tables()["ads"]
    np.testing.assert_array_equal(values, table.initializer((500, 16)))
    assert np.std(values) == pytest.approx(0.25, rel=0.05)


def test_configurations_of_keras_rs_give_its_results() -> None:
    keras_rs = pytest.importorskip("keras_rs")
    table = keras_rs.layers.TableConfig(
        "ads", 10, 4, keras.initializers.RandomNormal(seed=2), combiner="sqrtn"
    )
    features = (
        keras_rs.layers.FeatureConfig("a", table, (2, 2), (2, 4)),
        {"b": keras_rs.layers.FeatureConfig("b", table, (2,), (2, 4))},
    )
    inputs = (tf.constant([[1, 2], [3, 3]]), {"b": tf.constant([9, 0])})
    ours = DistributedEmbedding(features)
    again = DistributedEmbedding.from_config(ours.get_config())
    theirs = keras_rs.layers.DistributedEmbedding(features)
    expected = theirs(inputs)
    for layer in (ours, again):
        outputs = layer(inputs)
        keras.tree.assert_same_structure(outputs, expected)
        for a, b in zip(
            keras.tree.flatten(outputs),
            keras.tree.flatten(expected),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    shapes = keras.tree.map_structure(lambda t: tuple(t.shape), expected)
    assert ours.compute_output_shape(((2, 2), {"b": (2,)})) == shapes


@pytest.mark.parametrize(
    ("features", "error", "message"),
    [
        ({}, ValueError, "at least one feature"),
        ({"a": 3}, TypeError, "Received: 3 at a"),
        (
            [
                FeatureConfig("a", TableConfig("t", 3, 2), (None,), (None, 2)),
                FeatureConfig("b", TableConfig("t", 3, 2), (None,), (None, 2)),
            ],
            ValueError,
            "2 tables have the name 't'.*same TableConfig object",
        ),
    ],
)
def test_features_that_contradict_are_refused(
    features: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        DistributedEmbedding(features)


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "Adam"])
def test_training_is_that_of_separate_layers(optimizer: str) -> None:
    random = np.random.default_rng(0)
    # No id twice in a batch of eight.
    first = np.concatenate([random.permutation(40)[:8] for _ in range(4)])
    second = np.concatenate([random.permutation(9)[:8] for _ in range(4)])
    targets = random.normal(size=(32, 1)).astype("float32")

    def ours(a: Any, b: Any) -> list[Any]:
        layer = DistributedEmbedding(
            [
                FeatureConfig(
                    "a", TableConfig("a", 40, 4, "uniform"), (None,), (None, 4)
                ),
                FeatureConfig(
                    "b", TableConfig("b", 9, 4, "uniform"), (None,), (None, 4)
                ),
            ]
        )
        return layer([a, b])

    def separate(a: Any, b: Any) -> list[Any]:
        return [
            keras.layers.Embedding(40, 4)(a),
            keras.layers.Embedding(9, 4)(b),
        ]

    histories = []
    for embed in (ours, separate):
        # No initializer has its own seed.
        keras.utils.set_random_seed(3)
        inputs = [
            keras.Input((), dtype="int32"),
            keras.Input((), dtype="int32"),
        ]
        x = keras.layers.Concatenate()(embed(*inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(x))
        model.compile(getattr(keras.optimizers, optimizer)(0.1), "mse")
        histories.append(
            model.fit(
                [first, second],
                targets,
                batch_size=8,
                epochs=3,
                shuffle=False,
                verbose=0,
            ).history["loss"]
        )
    np.testing.assert_allclose(histories[0], histories[1], rtol=1e-5)
    assert histories[0][-1] < histories[0][0]


def _layer_with_cache(**options: Any) -> DistributedEmbedding:
    return DistributedEmbedding(
        FeatureConfig("a", TableConfig("a", 9, 4), (None,), (None, 4)),
        **options,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"cache_rows": -1},
        {"cache_rows": True},
        {"cache_rows": 2.0},
        {"cache_rows": 2, "cache_max_age_steps": -1},
        {"cache_rows": 2, "cache_max_age_steps": None},
    ],
)
def test_caches_of_no_possible_size_or_age_are_refused(
    options: dict[str, Any],
) -> None:
    name, value = list(options.items())[-1]
    with pytest.raises(errors.InputError, match=f"{name}={value}"):
        _layer_with_cache(**options)


def test_cached_rows_are_refused_with_tables_without_a_vocabulary() -> None:
    features = [
        FeatureConfig("a", TableConfig("a", 9, 4), (None,), (None, 4)),
        FeatureConfig("b", TableConfig("b", None, 4), (None,), (None, 4)),
    ]
    DistributedEmbedding(features)
    with pytest.raises(errors.UnsupportedError, match=r"the tables \['b'\]"):
        DistributedEmbedding(features, cache_rows=3)


def test_one_process_ignores_its_cache() -> None:
    layer = _layer_with_cache(cache_rows=5, cache_max_age_steps=100)
    again = DistributedEmbedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert layer.get_config()["cache_rows"] == 5
    tables = []
    for options in ({"cache_rows": 5, "cache_max_age_steps": 100}, {}):
        keras.utils.set_random_seed(3)
        each = _layer_with_cache(**options)
        model = keras.Sequential([each, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.5), "mse")
        model.fit(
            np.arange(24, dtype="int32") % 9,
            np.ones((24, 1)),
            batch_size=2,
            shuffle=False,
            verbose=0,
        )
        tables.append(each.get_embedding_tables()["a"])
        assert each.cache_statistics()["asked"] == 0
    np.testing.assert_array_equal(*tables)


# Tables on disk.


def _with_storage(stacking: Any) -> DistributedEmbedding:
    storage = tfps.TieredStorage(10, "/rows")
    tables = [
        TableConfig("a", 30, 4, "zeros"),
        TableConfig("b", 20, 4, "ones", storage=storage),
        TableConfig("c", 10, 4, "ones"),
    ]
    layer = DistributedEmbedding(
        [FeatureConfig(t.name, t, (None,), (None, 4)) for t in tables],
        table_stacking=stacking,
    )
    layer.build()
    return layer


@pytest.mark.parametrize(
    "stacking", ["auto", [["a", "c"]], [["a", "c"], ["b"]]]
)
def test_a_table_with_storage_is_a_stack_of_its_own(stacking: Any) -> None:
    layer = _with_storage(stacking)
    assert [tuple(each.shape) for each in layer.weights] == [(40, 4), (20, 4)]
    np.testing.assert_array_equal(layer.weights[1], np.ones((20, 4)))
    again = DistributedEmbedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()


@pytest.mark.parametrize("stacking", [["a", "b"], [["c"], ["b", "a"]]])
def test_a_table_with_storage_is_not_stacked_with_others(stacking: Any) -> None:
    with pytest.raises(ValueError, match="'b', which has storage"):
        _with_storage(stacking)
