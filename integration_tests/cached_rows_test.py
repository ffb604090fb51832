"""Tests of embeddings whose most looked-up rows stay on the workers.

The truth is the same training without a cache; and rows that tell the step
that wrote them.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_ROWS = 40
_BATCH = 8
_STEPS = 12
_IDS = np.random.default_rng(3).zipf(1.3, (_STEPS * _BATCH, 3)) % _ROWS


def _strategy(
    cluster: tfps.LocalCluster, num_shards: int | None = 2, **options: Any
) -> tfps.ParameterServerStrategy:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        num_shards and tfps.partitioners.FixedShardsPartitioner(num_shards),
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
        **options,
    )
    _strategies.append(strategy)
    return strategy


_strategies: list[tfps.ParameterServerStrategy] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Closes the coordinators of the strategies of a test."""
    yield
    while _strategies:
        tfps.ClusterCoordinator(_strategies.pop()).close()


def _layer(
    initializer: Any, combiner: str = "sum", **options: Any
) -> tfps.layers.DistributedEmbedding:
    table = tfps.layers.TableConfig(
        "items", _ROWS, 4, initializer, combiner=combiner
    )
    return tfps.layers.DistributedEmbedding(
        tfps.layers.FeatureConfig("item", table, (None, 3), (None, 4)),
        **options,
    )


def _dataset() -> tf.data.Dataset:
    targets = (_IDS[:, :1] % 2).astype("float32")
    return tf.data.Dataset.from_tensor_slices((_IDS, targets)).batch(_BATCH)


def _trained(
    strategy: tfps.ParameterServerStrategy, **options: Any
) -> tuple[list[float], np.ndarray, Any]:
    with strategy.scope():
        layer = _layer(keras.initializers.RandomNormal(seed=1), **options)
        model = keras.Sequential(
            [
                layer,
                keras.layers.Dense(
                    1, kernel_initializer=keras.initializers.Ones()
                ),
            ]
        )
        model.compile(keras.optimizers.Adagrad(0.1), "mse")
    history = model.fit(_dataset(), epochs=2, verbose=0)
    return (
        history.history["loss"],
        layer.get_embedding_tables()["items"].numpy(),
        layer,
    )


@pytest.mark.parametrize("num_shards", [None, 2])
def test_a_cache_of_no_age_changes_nothing(
    cluster: tfps.LocalCluster, num_shards: int | None
) -> None:
    losses, table, _ = _trained(_strategy(cluster, num_shards))
    cached_losses, cached_table, layer = _trained(
        _strategy(cluster, num_shards), cache_rows=16, cache_max_age_steps=0
    )
    np.testing.assert_allclose(cached_losses, losses, rtol=1e-5)
    np.testing.assert_allclose(cached_table, table, rtol=1e-5, atol=1e-6)
    statistics = layer.cache_statistics()
    assert statistics["asked"] > 0
    assert statistics["hits"] == 0


class _Telling(keras.Model):
    """Returns, as its loss, the age of the oldest row it has read.

    Each step adds one to every row that it looks up, and looks up all rows.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embed = _layer("zeros", **options)
        self.made = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="made"
        )

    def train_step(self, data: Any) -> dict[str, Any]:
        ids = tf.reshape(tf.range(_ROWS), [-1, 1]) + tf.zeros([1, 3], tf.int32)
        with tf.GradientTape() as tape:
            rows = self.embed(ids)
            # Every row gets a gradient of minus one.
            loss = -tf.reduce_sum(rows) / 3.0
        made = tf.convert_to_tensor(self.made)
        ages = made - rows / 3.0
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply(gradients, variables)
        self.made.assign_add(1.0)
        return {
            "youngest": tf.reduce_min(ages),
            "oldest": tf.reduce_max(ages),
        }


def test_no_row_is_older_than_its_bound(cluster: tfps.LocalCluster) -> None:
    with _strategy(cluster).scope():
        # Some ids share a place.
        model = _Telling(cache_rows=_ROWS, cache_max_age_steps=3)
        model.embed.build()
        model.compile(keras.optimizers.SGD(1.0), steps_per_execution=1)
    seen: list[tuple[float, float]] = []
    model.fit(
        tf.data.Dataset.range(_STEPS).batch(1),
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda _, logs: seen.append(
                    (logs["youngest"], logs["oldest"])
                )
            )
        ],
    )
    assert min(youngest for youngest, _ in seen) == 0.0
    assert max(oldest for _, oldest in seen) == 3.0
    assert 0.4 < model.embed.cache_statistics()["hit_rate"] < 0.75


def test_loaded_weights_are_seen_at_once(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    with _strategy(cluster).scope():
        model = _Telling(cache_rows=1_000, cache_max_age_steps=1_000)
        model.embed.build()
        model.compile(keras.optimizers.SGD(1.0))
    data = tf.data.Dataset.range(_STEPS).batch(1)
    path = str(tmp_path / "model.weights.h5")
    model.fit(data.take(1), verbose=0)
    model.save_weights(path)
    first = model.fit(data, verbose=0).history
    assert first["oldest"][-1] > 0
    model.load_weights(path)
    once = model.fit(data.take(1), verbose=0).history
    assert once["oldest"] == once["youngest"] == [0.0]


@pytest.mark.parametrize(
    ("consistency", "name"),
    [
        (tfps.Sync(), "Sync"),
        (tfps.BoundedStaleness(2), "BoundedStaleness"),
        (tfps.Async(local_steps=2), "local steps"),
    ],
)
def test_promises_that_old_rows_break_are_refused(
    cluster: tfps.LocalCluster, consistency: Any, name: str
) -> None:
    with pytest.raises(errors.UnsupportedError, match=name):
        _trained(_strategy(cluster, consistency=consistency), cache_rows=16)
