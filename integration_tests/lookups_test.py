"""Tests that lookups on a cluster give one process's numbers and errors."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_ROWS = 60
_BATCH = 8
_BATCHES = 6


@pytest.fixture(params=["sharded", "whole"])
def strategy(
    cluster: tfps.LocalCluster, request: pytest.FixtureRequest
) -> Iterator[tfps.ParameterServerStrategy]:
    shards = {"sharded": 3, "whole": 1}[request.param]
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(shards),
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
    )
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


def _dataset(context: Any = None) -> tf.data.Dataset:
    random = np.random.default_rng(5)
    num_examples = _BATCH * _BATCHES
    lengths = random.integers(0, 4, num_examples)
    ragged = tf.RaggedTensor.from_row_lengths(
        random.integers(0, _ROWS, lengths.sum()), lengths
    )
    fixed = random.integers(-_ROWS, _ROWS, (num_examples, 3)).astype("int32")
    targets = random.integers(0, 2, (num_examples, 1)).astype("float32")
    return (
        tf.data.Dataset.from_tensor_slices(
            (
                {
                    "fixed": fixed,
                    "ragged": ragged,
                    "sparse": tf.sparse.from_dense(fixed % _ROWS),
                },
                targets,
            )
        )
        .repeat()
        .batch(_BATCH)
    )


def _model() -> keras.Model:
    keras.utils.set_random_seed(3)
    inputs = {
        "fixed": keras.Input((3,), dtype="int32", name="fixed"),
        "ragged": keras.Input(
            (None,), dtype="int64", name="ragged", ragged=True
        ),
        "sparse": keras.Input((3,), dtype="int32", name="sparse", sparse=True),
    }
    shared = keras.layers.Embedding(_ROWS, 4, name="shared")
    adapted = keras.layers.Embedding(_ROWS, 4, lora_rank=2)
    pieces = [
        keras.layers.Flatten()(shared(inputs["fixed"])),
        keras.layers.Flatten()(shared(inputs["sparse"])),
        keras.layers.Flatten()(adapted(inputs["fixed"])),
        keras.ops.sum(shared(inputs["ragged"]), axis=1),
    ]
    outputs = keras.layers.Dense(1, activation="sigmoid")(
        keras.layers.Concatenate()(pieces)
    )
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
    return model


def test_fit_with_all_kinds_of_ids_is_fit_in_one_process(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    alone = _model()
    expected = alone.fit(_dataset(), epochs=2, steps_per_epoch=6, verbose=0)
    with strategy.scope():
        ours = _model()
    actual = ours.fit(
        tfps.DatasetCreator(_dataset), epochs=2, steps_per_epoch=6, verbose=0
    )
    np.testing.assert_allclose(
        actual.history["loss"], expected.history["loss"], rtol=1e-4
    )
    for mine, theirs in zip(ours.weights, alone.weights, strict=True):
        np.testing.assert_allclose(
            mine.numpy(), theirs.numpy(), rtol=1e-3, atol=1e-5
        )


@pytest.mark.compat
@pytest.mark.parametrize("bad", [_ROWS, -_ROWS - 1])
def test_an_id_outside_the_table_fails_fit_with_its_name(
    strategy: tfps.ParameterServerStrategy, bad: int
) -> None:
    def dataset(context: Any) -> tf.data.Dataset:
        ids = tf.constant([[1, 2, 3], [4, bad, 5]])
        return tf.data.Dataset.from_tensors((ids, [[0.0], [1.0]])).repeat()

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Embedding(_ROWS, 4, name="items"),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        model.fit(
            tfps.DatasetCreator(dataset), epochs=1, steps_per_epoch=2, verbose=0
        )
    for part in ("items/embeddings", f"rows 0 to {_ROWS - 1}", f"[{bad}]"):
        assert part in str(raised.value)


_FULL = tf.ragged.constant([[1, 1, 22], [3], [0], [5, 1]])
_LOOKUPS: dict[str, Callable[[Any], tf.Tensor]] = {
    "gather": lambda t: tf.gather(t, [[1, 1], [59, 0]]),
    "ragged": lambda t: tf.gather(t, _FULL).flat_values,
    "embedding_lookup": lambda t: tf.nn.embedding_lookup(
        t, [1, 1, 59], max_norm=0.5
    ),
    "sparse": lambda t: tf.nn.embedding_lookup_sparse(
        t, _FULL.to_sparse(), None, combiner="mean"
    ),
    "safe": lambda t: tf.nn.safe_embedding_lookup_sparse(
        t, _FULL.to_sparse(), combiner="sqrtn", default_id=7
    ),
    "whole": lambda t: tf.gather(t, [0, 2], axis=1),
}


@pytest.mark.compat
def test_lookups_of_a_custom_loop(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    value = np.random.default_rng(0).normal(size=(_ROWS, 4)).astype("float32")
    plain = tf.Variable(value)
    with strategy.scope():
        table = tf.Variable(value, name="table")
    coordinator = tfps.ClusterCoordinator(strategy)

    def gradients(variable: Any) -> list[Any]:
        found = []
        for lookup in _LOOKUPS.values():
            with tf.GradientTape() as tape:
                result = lookup(variable)
                loss = tf.reduce_sum(result * result)
            gradient = tape.gradient(loss, variable)
            found.append((result, tf.convert_to_tensor(gradient)))
        return found

    with pytest.raises(tf.errors.InvalidArgumentError, match="table table"):
        coordinator.schedule(
            tf.function(lambda: tf.gather(table, [0, _ROWS]))
        ).fetch()
    actual = coordinator.schedule(tf.function(lambda: gradients(table)))
    for name, mine, right in zip(
        _LOOKUPS, actual.fetch(), gradients(plain), strict=True
    ):
        for ours, theirs in zip(mine, right, strict=True):
            np.testing.assert_allclose(
                ours, theirs, rtol=1e-5, atol=1e-6, err_msg=name
            )


def _recurrent() -> keras.Model:
    """Returns a model with a mask, a loop, and another library's layer."""
    keras_rs = pytest.importorskip("keras_rs")
    keras.utils.set_random_seed(3)
    inputs = {
        "one": keras.Input((), batch_size=_BATCH, dtype="int32", name="one"),
        "many": keras.Input(
            (5,), batch_size=_BATCH, dtype="int32", name="many"
        ),
    }
    configs = {
        name: keras_rs.layers.FeatureConfig(
            name,
            keras_rs.layers.TableConfig(
                f"table_{name}",
                _ROWS,
                8,
                initializer=keras.initializers.RandomUniform(seed=5),
            ),
            input_shape,
            (_BATCH, 8),
        )
        for name, input_shape in (("one", (_BATCH,)), ("many", (_BATCH, 5)))
    }
    embedded = keras_rs.layers.DistributedEmbedding(configs)(inputs)
    masked = keras.layers.Embedding(_ROWS, 6, mask_zero=True)(inputs["many"])
    joined = keras.layers.Concatenate()(
        [embedded["one"], embedded["many"], keras.layers.LSTM(4)(masked)]
    )
    output = keras.layers.Dense(1, activation="sigmoid")(joined)
    model = keras.Model(inputs, output)
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
    return model


def _padded(context: Any = None) -> tf.data.Dataset:
    random = np.random.default_rng(5)
    num_examples = _BATCH * _BATCHES
    many = random.integers(1, _ROWS, (num_examples, 5)).astype("int32")
    many[:, 3:] *= random.integers(0, 2, (num_examples, 2))
    one = random.integers(0, _ROWS, num_examples).astype("int32")
    targets = random.integers(0, 2, (num_examples, 1)).astype("float32")
    return (
        tf.data.Dataset.from_tensor_slices(
            ({"one": one, "many": many}, targets)
        )
        .repeat()
        .batch(_BATCH, drop_remainder=True)
    )


def test_masks_loops_and_tables_of_keras_rs(
    cluster: tfps.LocalCluster,
) -> None:
    alone = _recurrent()
    alone.fit(_padded(), steps_per_epoch=20, verbose=0)
    expected = [v.numpy() for v in alone.trainable_variables]
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        # It shards all variables, including those of the recurrent cell.
        tfps.partitioners.FixedShardsPartitioner(2),
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
    )
    with strategy.scope():
        model = _recurrent()
    model.fit(tfps.DatasetCreator(_padded), steps_per_epoch=20, verbose=0)
    actual = [v.numpy() for v in model.trainable_variables]
    tfps.ClusterCoordinator(strategy).close()
    for mine, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_ids_that_are_constants(strategy: tfps.ParameterServerStrategy) -> None:
    """They travel together with gradients that are constants as well."""
    rows = np.arange(2 * _ROWS, dtype="float32").reshape(_ROWS, 2)
    with strategy.scope():
        table = keras.Variable(rows, name="table")
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build([table])

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            found = tf.gather(table, [1, 28, _ROWS - 1])
            loss = tf.reduce_sum(found)
        optimizer.apply(tape.gradient(loss, [table]), [table])
        return found

    coordinator = tfps.ClusterCoordinator(strategy)
    found = coordinator.schedule(step).fetch()
    np.testing.assert_array_equal(found, rows[[1, 28, _ROWS - 1]])
    expected = rows.copy()
    np.subtract.at(expected, [1, 28, _ROWS - 1], 0.5)
    np.testing.assert_array_equal(table.numpy(), expected)
