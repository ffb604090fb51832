"""Tests of DistributedEmbedding where workers wait for each other or go ahead.

The reference has one `keras.layers.Embedding` for each table, in one process.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import shared_optimizers
import shared_sync_parity as parity
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = [
    pytest.mark.cluster(num_workers=2, num_ps=2),
    pytest.mark.sample(cases=2, group="consistency_rules"),
]

_WORKERS, _STEPS, _BATCH, _IDS = 2, 20, 8, 3
# Table -> rows, numbers in a row, combiner. Two tables share a stack.
_TABLES = {
    "ads": (30, 4, "sqrtn"),
    "words": (41, 4, "mean"),
    "places": (23, 6, "sum"),
}
# Feature -> its table. Two features share one; "seen" has weights, "visited"
# any number of ids, or none.
_FEATURES = {"ad": "ads", "seen": "ads", "bag": "words", "visited": "places"}
_WIDTH = sum(_TABLES[table][1] for table in _FEATURES.values())

# Batches of all workers by name, and their targets: a nested structure whose
# parts have the axes workers, steps, examples.
_random = np.random.default_rng(5)
_AXES = (_WORKERS, _STEPS, _BATCH)


def _ids(rows: int, *more: int) -> np.ndarray:
    # Keras counts negative ids from the end.
    ids = _random.integers(-rows, rows, (*_AXES, *more)).astype("int32")
    if more:
        ids[..., 1] = ids[..., 0]
    return ids


_FOUND = {
    "ad": _ids(_TABLES["ads"][0]),
    "seen": _ids(_TABLES["ads"][0], _IDS),
    "bag": _ids(_TABLES["words"][0], _IDS),
    "visited": _ids(_TABLES["places"][0], _IDS),
    "weights": _random.uniform(0.5, 2.0, (*_AXES, _IDS)).astype("float32"),
    # The number of ids of "visited".
    "length": _random.integers(0, _IDS + 1, _AXES).astype("int32"),
}
_TARGETS = _random.normal(size=(*_AXES, _WIDTH)).astype("float32")

Pick = Callable[[np.ndarray], np.ndarray]


def _dataset(pick: Pick) -> tf.data.Dataset:
    """Returns batches.

    Args:
        pick: Returns what is wanted of an array: steps, examples.
    """
    found = {name: pick(part) for name, part in _FOUND.items()}

    def ragged(x: dict[str, Any], y: Any) -> Any:
        x = dict(x)
        mask = tf.sequence_mask(x.pop("length"), _IDS)
        x["visited"] = tf.ragged.boolean_mask(x["visited"], mask)
        return x, y

    return tf.data.Dataset.from_tensor_slices((found, pick(_TARGETS))).map(
        ragged
    )


def _of_worker(context: Any) -> tf.data.Dataset:
    return _dataset(lambda part: part[context.input_pipeline_id])


def _of_all() -> tf.data.Dataset:
    return _dataset(lambda part: np.concatenate(part, axis=1))


def _one_after_another() -> tf.data.Dataset:
    return _dataset(np.concatenate)


def _initializer(table: str) -> Any:
    return keras.initializers.RandomUniform(seed=len(table))


def _distributed(inputs: dict[str, Any]) -> list[Any]:
    tables = {
        name: tfps.layers.TableConfig(
            name, rows, width, _initializer(name), combiner=combiner
        )
        for name, (rows, width, combiner) in _TABLES.items()
    }
    shapes = {"ad": (None,), "visited": (None, None)}
    embed = tfps.layers.DistributedEmbedding(
        {
            feature: tfps.layers.FeatureConfig(
                feature,
                tables[table],
                shapes.get(feature, (None, _IDS)),
                (None, _TABLES[table][1]),
            )
            for feature, table in _FEATURES.items()
        },
        name="embed",
    )
    outputs = embed(
        {feature: inputs[feature] for feature in _FEATURES},
        {
            feature: inputs["weights"] if feature == "seen" else None
            for feature in _FEATURES
        },
    )
    return [outputs[feature] for feature in _FEATURES]


def _separate(inputs: dict[str, Any]) -> list[Any]:
    layers = {
        name: keras.layers.Embedding(rows, width, _initializer(name), name=name)
        for name, (rows, width, _) in _TABLES.items()
    }
    rows = {
        feature: layers[table](inputs[feature])
        for feature, table in _FEATURES.items()
    }
    weights = inputs["weights"][:, :, None]
    sizes = keras.ops.sqrt(keras.ops.sum(weights**2, axis=1))
    return [
        rows["ad"],
        keras.ops.sum(rows["seen"] * weights, axis=1) / sizes,
        keras.ops.mean(rows["bag"], axis=1),
        keras.ops.sum(rows["visited"], axis=1),
    ]


def _inputs_and_rows(embed: Any) -> tuple[Any, Any]:
    inputs = {
        "ad": keras.Input((), dtype="int32", name="ad"),
        "seen": keras.Input((_IDS,), dtype="int32", name="seen"),
        "bag": keras.Input((_IDS,), dtype="int32", name="bag"),
        "visited": keras.Input(
            (None,), dtype="int32", name="visited", ragged=True
        ),
        "weights": keras.Input((_IDS,), name="weights"),
    }
    return inputs, keras.layers.Concatenate()(embed(inputs))


def _deep(embed: Any, optimizer: Any) -> keras.Model:
    """Returns a model whose gradients depend on all of its weights."""
    keras.utils.set_random_seed(3)
    inputs, rows = _inputs_and_rows(embed)
    x = keras.layers.Dense(8, activation="tanh", name="hidden")(rows)
    model = keras.Model(inputs, keras.layers.Dense(_WIDTH, name="top")(x))
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, "mse")
    return model


def _linear(embed: Any, optimizer: Any) -> keras.Model:
    """Returns a model whose gradients do not depend on its weights.

    With plain SGD, its weights do not depend on the order of steps.
    """
    inputs, rows = _inputs_and_rows(embed)
    model = keras.Model(inputs, rows)
    model.compile(optimizer, lambda y, p: keras.ops.sum(y * p, axis=-1))
    return model


def _weights(model: keras.Model) -> dict[str, np.ndarray]:
    """Returns the tables and the weights of dense layers, by their names."""
    found: dict[str, np.ndarray] = {}
    for layer in model.layers:
        if layer.name == "embed":
            tables = layer.get_embedding_tables()
            found |= {name: table.numpy() for name, table in tables.items()}
        elif layer.weights:
            found[layer.name], *more = layer.get_weights()
            found |= {f"{layer.name} bias": bias for bias in more}
    return found


def _alone(make: Any, optimizer: Any, data: tf.data.Dataset) -> Any:
    """Returns the losses and weights of one process."""
    model = make(_separate, shared_optimizers.summing(optimizer))
    history = model.fit(data, shuffle=False, verbose=0).history
    return history["loss"], _weights(model)


def _on_cluster(
    cluster: tfps.LocalCluster,
    make: Any,
    optimizer: Any,
    data: Any,
    consistency: Any,
    *,
    num_shards: int | None = 2,
    sparse_update: Any = "exact",
    **options: Any,
) -> Any:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        None
        if num_shards is None
        else tfps.partitioners.FixedShardsPartitioner(num_shards),
        consistency=consistency,
        sparse_update=sparse_update,
    )
    try:
        with strategy.scope():
            model = make(_distributed, optimizer())
        history = model.fit(data, shuffle=False, verbose=0, **options).history
        return history["loss"], _weights(model), int(model.optimizer.iterations)
    finally:
        tfps.ClusterCoordinator(strategy).close()


def _assert_same(
    found: dict[str, np.ndarray], expected: dict[str, np.ndarray]
) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        difference = np.abs(found[name] - value).max() / np.abs(value).max()
        assert difference <= parity.TOLERANCE, (name, difference)


_OPTIMIZERS: dict[str, tuple[Any, str]] = {
    "SGD": (lambda: keras.optimizers.SGD(0.1, momentum=0.9), "exact"),
    "Adam": (lambda: keras.optimizers.Adam(0.01), "exact"),
    "clipnorm": (
        lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.02),
        "exact",
    ),
    "Adagrad": (lambda: keras.optimizers.Adagrad(0.1), "auto"),
}


@pytest.mark.parametrize("num_shards", [None, 2])
@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_workers_in_step_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str, num_shards: int | None
) -> None:
    optimizer, sparse_update = _OPTIMIZERS[name]
    losses, expected = _alone(_deep, optimizer(), _of_all())
    found_losses, found, num_steps = _on_cluster(
        cluster,
        _deep,
        optimizer,
        tfps.DatasetCreator(_of_worker),
        tfps.Sync(),
        num_shards=num_shards,
        sparse_update=sparse_update,
    )
    assert num_steps == _STEPS
    np.testing.assert_allclose(found_losses, losses, rtol=1e-5)
    _assert_same(found, expected)


def test_batches_that_are_cut_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster,
) -> None:
    optimizer, _ = _OPTIMIZERS["SGD"]
    losses, expected = _alone(_deep, optimizer(), _of_all())
    found_losses, found, num_steps = _on_cluster(
        cluster, _deep, optimizer, _of_all(), tfps.Sync()
    )
    assert num_steps == _STEPS
    np.testing.assert_allclose(found_losses, losses, rtol=1e-5)
    _assert_same(found, expected)


def test_whoever_comes_first_trains_with_a_backup_worker(
    cluster: tfps.LocalCluster,
) -> None:
    """All batches are the same, so that it does not matter whose count."""

    def constant() -> tf.data.Dataset:
        return _dataset(lambda part: part[0, :1]).repeat()

    optimizer, _ = _OPTIMIZERS["SGD"]
    _, expected = _alone(_deep, optimizer(), constant().take(_STEPS))
    _, found, num_steps = _on_cluster(
        cluster,
        _deep,
        optimizer,
        tfps.DatasetCreator(lambda context: constant()),
        tfps.Sync(backup_workers=1),
        steps_per_epoch=_STEPS,
    )
    assert num_steps == _STEPS
    _assert_same(found, expected)


@pytest.mark.parametrize(
    "consistency",
    [tfps.BoundedStaleness(2), tfps.Async(local_steps=4)],
    ids=["bounded", "local"],
)
@pytest.mark.parametrize("is_of_workers", [True, False])
def test_every_gradient_counts_once(
    cluster: tfps.LocalCluster, consistency: Any, is_of_workers: bool
) -> None:
    def optimizer() -> Any:
        return keras.optimizers.SGD(0.1)

    _, expected = _alone(_linear, optimizer(), _one_after_another())
    _, found, num_updates = _on_cluster(
        cluster,
        _linear,
        optimizer,
        tfps.DatasetCreator(_of_worker)
        if is_of_workers
        else _one_after_another(),
        consistency,
    )
    num_steps = _WORKERS * _STEPS
    if isinstance(consistency, tfps.BoundedStaleness):
        assert num_updates == num_steps
    else:
        assert num_steps / 4 <= num_updates < num_steps
    _assert_same(found, expected)
