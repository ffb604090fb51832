"""Tests that DistributedEmbedding trains like separate Embedding layers.

With one worker and one step in flight, single-process Keras is the reference.
"""

import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.training.embedding import matrix_columns

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_BATCH = 8
_BATCHES = 6
_IDS = 3
# Table -> rows, numbers in a row, initial values.
_TABLES = {
    "ads": (60, 4, keras.initializers.RandomNormal(seed=1)),
    "users": (45, 4, keras.initializers.RandomUniform(seed=2)),
    # This initializer works in one piece only.
    "words": (70, 4, keras.initializers.Orthogonal(seed=3)),
    "places": (31, 6, keras.initializers.VarianceScaling(seed=4)),
}
# Feature -> its table; "bag" has several ids in each example.
_FEATURES = {"ad": "ads", "user": "users", "bag": "words", "place": "places"}


def _strategy(
    cluster: tfps.LocalCluster, num_shards: int | None
) -> tfps.ParameterServerStrategy:
    return tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        None
        if num_shards is None
        else tfps.partitioners.FixedShardsPartitioner(num_shards),
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
    )


def _dataset(repeated: bool) -> tf.data.Dataset:
    random = np.random.default_rng(5)

    def ids(rows: int, number: int) -> np.ndarray:
        if repeated:
            # Keras counts negative ids from the end.
            return random.integers(-rows, rows, _BATCHES * number)
        return np.concatenate(
            [random.permutation(rows)[:number] for _ in range(_BATCHES)]
        )

    features = {
        feature: ids(
            _TABLES[table][0], _BATCH * (_IDS if feature == "bag" else 1)
        ).astype("int32")
        for feature, table in _FEATURES.items()
    }
    features["bag"] = features["bag"].reshape(-1, _IDS)
    targets = random.normal(size=(_BATCH * _BATCHES, 1)).astype("float32")
    return (
        tf.data.Dataset.from_tensor_slices((features, targets))
        .repeat()
        .batch(_BATCH)
    )


def _distributed(inputs: dict[str, Any]) -> list[Any]:
    tables = {
        name: tfps.layers.TableConfig(name, rows, width, initializer)
        for name, (rows, width, initializer) in _TABLES.items()
    }
    embed = tfps.layers.DistributedEmbedding(
        {
            feature: tfps.layers.FeatureConfig(
                feature,
                tables[table],
                (None, _IDS) if feature == "bag" else (None,),
                (None, _TABLES[table][1]),
            )
            for feature, table in _FEATURES.items()
        },
        name="embed",
    )
    outputs = embed(inputs)
    return [outputs[feature] for feature in _FEATURES]


def _separate(inputs: dict[str, Any]) -> list[Any]:
    outputs = []
    for feature, table in _FEATURES.items():
        rows, width, initializer = _TABLES[table]
        x = keras.layers.Embedding(
            rows, width, embeddings_initializer=initializer, name=table
        )(inputs[feature])
        if feature == "bag":
            x = keras.layers.GlobalAveragePooling1D()(x)
        outputs.append(x)
    return outputs


def _model(embed: Any, optimizer: str) -> keras.Model:
    keras.utils.set_random_seed(3)
    inputs = {
        feature: keras.Input(
            (_IDS,) if feature == "bag" else (), dtype="int32", name=feature
        )
        for feature in _FEATURES
    }
    x = keras.layers.Concatenate()(embed(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile(getattr(keras.optimizers, optimizer)(0.1), "mse")
    return model


@pytest.mark.compat
@pytest.mark.parametrize("num_shards", [None, 2])
@pytest.mark.parametrize(
    ("optimizer", "repeated"),
    # Keras's Adagrad squares the parts of a repeated id's gradient instead of
    # their sum, so it is no reference for repeated ids.
    [("SGD", True), ("Adagrad", False)],
)
def test_training_is_that_of_separate_layers_in_one_process(
    cluster: tfps.LocalCluster,
    num_shards: int | None,
    optimizer: str,
    repeated: bool,
) -> None:
    alone = _model(_separate, optimizer)
    expected = alone.fit(
        _dataset(repeated), epochs=2, steps_per_epoch=9, verbose=0
    )
    # Read them now: the first connection to a cluster renames this process.
    expected_tables = {
        name: alone.get_layer(name).embeddings.numpy() for name in _TABLES
    }
    strategy = _strategy(cluster, num_shards)
    with strategy.scope():
        ours = _model(_distributed, optimizer)
    embed = ours.get_layer("embed")
    for name, table in embed.get_embedding_tables().items():
        rows, width, initializer = _TABLES[name]
        np.testing.assert_array_equal(table, initializer((rows, width)))
    actual = ours.fit(
        tfps.DatasetCreator(lambda context: _dataset(repeated)),
        epochs=2,
        steps_per_epoch=9,
        verbose=0,
    )
    tables = embed.get_embedding_tables()
    tfps.ClusterCoordinator(strategy).close()
    np.testing.assert_allclose(
        actual.history["loss"], expected.history["loss"], rtol=1e-4
    )
    assert len(embed.weights) == 2
    for name, table in tables.items():
        np.testing.assert_allclose(
            table, expected_tables[name], rtol=1e-3, atol=1e-5
        )


_ROWS_OF_COLUMNS = [7, 12, 5, 9, 12]


def _of_columns(joint: bool) -> keras.Model:
    """Returns a model of features that are columns of one matrix."""
    keras.utils.set_random_seed(3)
    ids = keras.Input((len(_ROWS_OF_COLUMNS),), dtype="int64")
    columns = [ids[:, n] for n in range(len(_ROWS_OF_COLUMNS))]
    tables = [
        (rows, keras.initializers.RandomUniform(seed=n))
        for n, rows in enumerate(_ROWS_OF_COLUMNS)
    ]
    if joint:
        found = tfps.layers.DistributedEmbedding(
            [
                tfps.layers.FeatureConfig(
                    f"feature_{n}",
                    tfps.layers.TableConfig(f"table_{n}", rows, 4, initializer),
                    (None,),
                    (None, 4),
                )
                for n, (rows, initializer) in enumerate(tables)
            ],
            name="embed",
        )(columns)
    else:
        found = [
            keras.layers.Embedding(rows, 4, initializer, name=f"table_{n}")(one)
            for n, ((rows, initializer), one) in enumerate(
                zip(tables, columns, strict=True)
            )
        ]
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(found))
    model = keras.Model(ids, outputs)
    model.compile("SGD", "mse")
    return model


@pytest.mark.parametrize("num_shards", [None, 2])
def test_columns_of_a_matrix_are_looked_up_together(
    cluster: tfps.LocalCluster,
    num_shards: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(6)
    shape = (64, len(_ROWS_OF_COLUMNS))
    ids = random.integers(-np.array(_ROWS_OF_COLUMNS), _ROWS_OF_COLUMNS, shape)
    targets = random.normal(size=(64, 1)).astype("float32")

    def dataset(context: Any = None) -> tf.data.Dataset:
        whole = tf.data.Dataset.from_tensor_slices((ids, targets))
        return whole.repeat().batch(8)

    alone = _of_columns(joint=False)
    expected = alone.fit(dataset(), epochs=2, steps_per_epoch=7, verbose=0)
    expected_tables = [
        alone.get_layer(f"table_{n}").embeddings.numpy()
        for n in range(len(_ROWS_OF_COLUMNS))
    ]
    strategy = _strategy(cluster, num_shards)
    with strategy.scope():
        model = _of_columns(joint=True)
    seen = []
    original = matrix_columns.columns_of_one_matrix

    def columns_of_one_matrix(features: Any) -> Any:
        seen.append(original(features))
        return seen[-1]

    monkeypatch.setattr(
        matrix_columns, "columns_of_one_matrix", columns_of_one_matrix
    )
    actual = model.fit(
        tfps.DatasetCreator(dataset), epochs=2, steps_per_epoch=7, verbose=0
    )
    tables = model.get_layer("embed").get_embedding_tables()
    tfps.ClusterCoordinator(strategy).close()
    # This holds in the step of `fit`, too, all of which waits for its batch.
    assert seen
    assert None not in seen
    np.testing.assert_allclose(
        actual.history["loss"], expected.history["loss"], rtol=1e-4
    )
    for n, table in enumerate(expected_tables):
        np.testing.assert_allclose(
            tables[f"table_{n}"], table, rtol=1e-3, atol=1e-5
        )


@pytest.mark.parametrize("num_shards", [None, 2])
def test_a_trained_model_is_saved_and_loaded(
    cluster: tfps.LocalCluster,
    num_shards: int | None,
    tmp_path: pathlib.Path,
) -> None:
    strategy = _strategy(cluster, num_shards)
    with strategy.scope():
        model = _model(_distributed, "Adagrad")
    model.fit(
        tfps.DatasetCreator(lambda context: _dataset(False)),
        steps_per_epoch=4,
        verbose=0,
    )
    path = tmp_path / "model.keras"
    model.save(path)
    ((batch, _),) = _dataset(False).take(1)
    expected = model(batch).numpy()
    alone = keras.models.load_model(path)
    np.testing.assert_allclose(alone(batch), expected, rtol=1e-5)
    # The way back: into sharded tables with other values.
    weights = tmp_path / "model.weights.h5"
    alone.save_weights(weights)
    with strategy.scope():
        again = _model(_distributed, "Adagrad")
        again.optimizer.build(again.trainable_variables)
    assert not np.allclose(again(batch), expected)
    again.load_weights(weights)
    np.testing.assert_allclose(again(batch), expected, rtol=1e-5)
    tfps.ClusterCoordinator(strategy).close()


def test_widths_share_one_exchange_with_each_ps(
    cluster: tfps.LocalCluster,
) -> None:
    strategy = _strategy(cluster, 2)

    def crossing(widths: list[int]) -> tuple[int, int]:
        with strategy.scope():
            embed = tfps.layers.DistributedEmbedding(
                [
                    tfps.layers.FeatureConfig(
                        f"f{n}",
                        tfps.layers.TableConfig(f"t{n}", 20, width, "uniform"),
                        (None,),
                        (None, width),
                    )
                    for n, width in enumerate(widths)
                ]
            )
            embed.build()
        assert len(embed.weights) == len(set(widths))
        ids = [tf.TensorSpec([None], tf.int32) for _ in widths]
        explanation = strategy.explain(tf.function(embed), [ids], print_fn=None)
        sent = [each for body in explanation.bodies for each in body.sent]
        return (
            sum(each.num_parcels for each in sent if each.destination),
            sum(each.num_parcels for each in sent if each.source),
        )

    three = crossing([4, 5, 6])
    one = crossing([4, 4, 4])
    tfps.ClusterCoordinator(strategy).close()
    # One message of ids to each of two ps, and one of rows from each.
    assert one == (2, 2)
    assert three == one


def test_ids_of_another_table_stop_training(
    cluster: tfps.LocalCluster,
) -> None:
    strategy = _strategy(cluster, 2)
    with strategy.scope():
        model = _model(_distributed, "SGD")
    before = model.get_layer("embed").get_embedding_tables()

    def dataset(context: Any) -> tf.data.Dataset:
        def spoil(features: Any, targets: Any) -> Any:
            return {**features, "ad": features["ad"] + 60}, targets

        return _dataset(False).map(spoil)

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"\[ad ad ad.*\[ads ads ads.*60"
    ):
        model.fit(tfps.DatasetCreator(dataset), steps_per_epoch=2, verbose=0)
    after = model.get_layer("embed").get_embedding_tables()
    for name, table in before.items():
        np.testing.assert_array_equal(after[name], table)
    tfps.ClusterCoordinator(strategy).close()
