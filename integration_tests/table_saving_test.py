"""Large tables travel between files and parameter servers block by block."""

import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.variables import shard_reader

_ROWS = 500
_BATCH = 32


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=1, num_ps=2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    # The table has 16,000 bytes, so it goes in 16 blocks; a shard in several.
    monkeypatch.setattr(shard_reader, "BLOCK_BYTES", 1000)


def _dataset(context: Any = None) -> tf.data.Dataset:
    """No id occurs twice in a batch: Keras's Adagrad is no truth for those."""
    random = np.random.default_rng(5)
    ids = np.concatenate(
        [random.permutation(_ROWS)[: 4 * _BATCH].reshape(_BATCH, 4)] * 4
    )
    targets = random.integers(0, 2, (4 * _BATCH, 1))
    return (
        tf.data.Dataset.from_tensor_slices(
            (ids.astype("int32"), targets.astype("float32"))
        )
        .repeat()
        .batch(_BATCH)
    )


def _model(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(_ROWS, 8),
            keras.layers.Flatten(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy")
    model.optimizer.build(model.trainable_variables)
    return model


def _strategy(
    cluster: tfps.LocalCluster, num_shards: int
) -> tfps.ParameterServerStrategy:
    return tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(num_shards),
        max_closures_in_flight_per_worker=1,
    )


def _values(model: keras.Model) -> list[np.ndarray]:
    return [v.numpy() for v in [*model.weights, *model.optimizer.variables]]


@pytest.mark.compat
@pytest.mark.parametrize("form", ["weights.h5", "weights.json", "keras"])
def test_a_model_goes_on_with_other_shards_and_in_one_process(
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    form: str,
) -> None:
    path = tmp_path / f"model.{form}"
    first = _strategy(cluster, 3)
    with first.scope():
        saved = _model(1)
    saved.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=10, verbose=0)
    if form == "keras":
        saved.save(path)
    elif form == "weights.json":
        # Of 16 kB each; the table and its slot do not fit into one.
        saved.save_weights(path, max_shard_size=20_000 / 2**30)
    else:
        saved.save_weights(path)
    expected = _values(saved)
    tfps.ClusterCoordinator(first).close()

    second = _strategy(cluster, 2)
    alone = _model(2)
    with second.scope():
        ours = _model(3)
    for model in (alone, ours):
        model.load_weights(path)
        for value, truth in zip(_values(model), expected, strict=True):
            np.testing.assert_array_equal(value, truth)
    if form == "keras":
        with second.scope():
            ours = keras.saving.load_model(path)
        alone = keras.saving.load_model(path)
        for value, truth in zip(_values(ours), expected, strict=True):
            np.testing.assert_array_equal(value, truth)
    assert len(ours.layers[0].embeddings.value.variables) == 2
    alone.fit(_dataset(), steps_per_epoch=10, verbose=0)
    ours.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=10, verbose=0)
    tfps.ClusterCoordinator(second).close()
    for value, truth in zip(_values(ours), _values(alone), strict=True):
        np.testing.assert_allclose(value, truth, rtol=1e-4, atol=1e-6)
    assert not np.array_equal(_values(ours)[0], expected[0])
