"""Tests that a worker's replicas have the numbers of one process.

The worker has two logical CPUs, and so two replicas. `shared_sync_parity` has
the model, its data and the reference.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import shared_sync_parity as parity
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2, logical_cpus=2)

_DATA = parity.Data(1)
# A bias of this case ends near zero after steps of 0.05: the rounding of sums
# in another order is a larger part of it.
_TOLERANCES = parity.TOLERANCES | {"schedule": 5e-5}
_ALONE = tfps.SchedulingOptions(max_closures_in_flight_per_worker=1)

_CONSISTENCIES: dict[str, Any] = {
    "asynchronous": tfps.Async(),
    "bounded": tfps.BoundedStaleness(max_staleness=1),
    "synchronous": tfps.Sync(),
}


def _trained(
    cluster: tfps.LocalCluster,
    make: Callable[[], keras.Model],
    dataset_fn: Any = _DATA.of_worker,
    strategy_options: dict[str, Any] | None = None,
    **options: Any,
) -> parity.Trained:
    given = {"consistency": None, "scheduling": _ALONE}
    return parity.on_cluster(
        cluster,
        make,
        dataset_fn,
        strategy_options=given | (strategy_options or {}),
        **options,
    )


@pytest.mark.sample(cases=2)
@pytest.mark.parametrize("name", parity.CASES)
def test_every_optimizer_and_option_has_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str
) -> None:
    actual = _trained(cluster, lambda: parity.new_model(parity.CASES[name]()))
    parity.assert_same(
        actual,
        parity.in_one_process(name, 1),
        _TOLERANCES.get(name, parity.TOLERANCE),
    )


@pytest.mark.sample(cases=2)
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("consistency", _CONSISTENCIES)
def test_every_consistency_has_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, consistency: str, replicas: int
) -> None:
    name = "SGD, momentum"
    options = {
        "consistency": _CONSISTENCIES[consistency],
        "replicas_per_worker": replicas,
    }
    actual = _trained(
        cluster,
        lambda: parity.new_model(parity.CASES[name]()),
        strategy_options=options,
    )
    parity.assert_same(actual, parity.in_one_process(name, 1))


@pytest.mark.parametrize("name", ["SGD, momentum", "Adam"])
@pytest.mark.sample(cases=1)
def test_rounds_of_local_steps_have_the_numbers_of_one_replica(
    cluster: tfps.LocalCluster, name: str
) -> None:
    trained = [
        _trained(
            cluster,
            lambda: parity.new_model(parity.CASES[name]()),
            strategy_options={
                "consistency": tfps.Async(local_steps=4),
                "replicas_per_worker": replicas,
            },
        )
        for replicas in (1, 2)
    ]
    parity.assert_same(trained[1], trained[0])


class _Mixed(keras.layers.Layer):
    """Normalizes by statistics of the whole batch, and regularizes."""

    def __init__(self) -> None:
        super().__init__()
        self._normalized = keras.layers.BatchNormalization(synchronized=True)
        self._dense = keras.layers.Dense(
            3, kernel_regularizer=keras.regularizers.L2(0.1)
        )

    def call(self, x: Any, training: bool = False) -> Any:
        return self._dense(self._normalized(x, training=training))


def _normalizing() -> keras.Model:
    keras.utils.set_random_seed(4)
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(
                parity.ROWS,
                4,
                embeddings_regularizer=keras.regularizers.L2(0.1),
            ),
            keras.layers.Flatten(),
            _Mixed(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.05),
        "mse",
        metrics=["mae", keras.metrics.RootMeanSquaredError()],
        weighted_metrics=["mse"],
    )
    return model


def _uneven(sizes: list[int]) -> tf.data.Dataset:
    """Returns batches of the given sizes, with weights of examples."""
    random = np.random.default_rng(2)

    def batches() -> Any:
        for size in sizes:
            yield (
                random.integers(0, parity.ROWS, (size, 3)).astype("int32"),
                random.normal(size=(size, 1)).astype("float32"),
                random.uniform(0.5, 2.0, size).astype("float32"),
            )

    drawn = list(batches())
    return tf.data.Dataset.from_generator(
        lambda: iter(drawn),
        output_signature=(
            tf.TensorSpec([None, 3], tf.int32),
            tf.TensorSpec([None, 1], tf.float32),
            tf.TensorSpec([None], tf.float32),
        ),
    ).apply(tf.data.experimental.assert_cardinality(len(sizes)))


@pytest.mark.parametrize("consistency", ["asynchronous", "synchronous"])
def test_batches_of_any_size_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, request: pytest.FixtureRequest, consistency: str
) -> None:
    """Also of fewer examples than there are replicas."""
    sizes = [7, 1, 4, 2, 5, 1, 1, 8]
    expected = _normalizing()
    losses = expected.fit(_uneven(sizes), epochs=2, verbose=0).history
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        parity.cut,
        sparse_update="exact",
        consistency=_CONSISTENCIES[consistency],
        scheduling=_ALONE,
    )
    request.addfinalizer(tfps.ClusterCoordinator(strategy).close)
    with strategy.scope():
        model = _normalizing()
    data = _uneven(sizes)
    history = model.fit(data, epochs=2, verbose=0).history
    assert history.keys() == losses.keys()
    for name, values in losses.items():
        np.testing.assert_allclose(history[name], values, rtol=2e-5)
    for mine, theirs in zip(model.variables, expected.variables, strict=True):
        np.testing.assert_allclose(
            mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5
        )
    np.testing.assert_allclose(
        model.evaluate(data, verbose=0),
        expected.evaluate(data, verbose=0),
        rtol=2e-5,
    )
    ids = np.arange(33).reshape(11, 3).astype("int32")
    np.testing.assert_allclose(
        model.predict(ids, batch_size=4, verbose=0),
        expected.predict(ids, batch_size=4, verbose=0),
        rtol=1e-4,
        atol=1e-5,
    )


def _normalizing_by_share() -> keras.Model:
    keras.utils.set_random_seed(4)
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(parity.ROWS, 4),
            keras.layers.Flatten(),
            keras.layers.BatchNormalization(momentum=0.7),
            keras.layers.Dense(3, activation="tanh"),
            keras.layers.BatchNormalization(momentum=0.7),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def _trained_by_shares(
    model: keras.Model, batches: tf.data.Dataset, num_shares: int
) -> float:
    """Trains in this process on shares, and returns the loss of the epoch.

    Each share has statistics of its own. Gradients and moving statistics are
    means over the examples of all shares.
    """
    states = model.non_trainable_variables
    losses = []
    for ids, targets in batches.as_numpy_iterator():
        begun = [state.numpy() for state in states]
        total = [np.zeros(v.shape) for v in model.trainable_variables]
        ended = [np.zeros(state.shape) for state in states]
        # The first shares have one example more, if they are not even.
        for share in np.array_split(np.arange(len(ids)), num_shares):
            if not len(share):
                continue
            for state, value in zip(states, begun, strict=True):
                state.assign(value)
            with tf.GradientTape() as tape:
                outputs = model(ids[share], training=True)
                loss = tf.reduce_mean(tf.square(outputs - targets[share]))
            gradients = tape.gradient(
                loss, [v.value for v in model.trainable_variables]
            )
            weight = len(share) / len(ids)
            for one, each in zip(total, gradients, strict=True):
                one += weight * tf.convert_to_tensor(each).numpy()
            for one, state in zip(ended, states, strict=True):
                one += weight * state.numpy()
            losses += [float(loss)] * len(share)
        model.optimizer.apply(
            [tf.constant(each, "float32") for each in total],
            model.trainable_variables,
        )
        for state, value in zip(states, ended, strict=True):
            state.assign(value)
    return float(np.mean(losses))


@pytest.mark.parametrize("consistency", _CONSISTENCIES)
def test_each_replica_normalizes_by_the_statistics_of_its_share(
    cluster: tfps.LocalCluster, request: pytest.FixtureRequest, consistency: str
) -> None:
    """Also of shares of different sizes, and where there is but one share."""

    def data() -> tf.data.Dataset:
        batches = _uneven([7, 4, 1, 7, 2, 5, 3])
        return batches.map(lambda ids, targets, _: (ids, targets))

    expected = _normalizing_by_share()
    losses = [_trained_by_shares(expected, data(), 2) for _ in range(2)]
    weights = [(v.path, v.numpy()) for v in expected.weights]
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        parity.cut,
        sparse_update="exact",
        consistency=_CONSISTENCIES[consistency],
        scheduling=_ALONE,
    )
    request.addfinalizer(tfps.ClusterCoordinator(strategy).close)
    with strategy.scope():
        model = _normalizing_by_share()
    history = model.fit(data(), epochs=2, verbose=0).history
    np.testing.assert_allclose(history["loss"], losses, rtol=2e-5)
    for mine, (path, value) in zip(model.weights, weights, strict=True):
        np.testing.assert_allclose(
            mine.numpy(), value, rtol=1e-4, atol=1e-5, err_msg=path
        )


class _InnerFunction(keras.layers.Layer):
    """Looks rows up in a function of its own, and in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self._table = keras.layers.Embedding(parity.ROWS + 1, 4)

    def build(self, shape: Any) -> None:
        self._table.build(shape)

    def call(self, ids: Any) -> Any:
        rows = tf.function(self._table, autograph=False)(ids)
        _, total = tf.while_loop(
            lambda n, _: n < 3,
            lambda n, total: (n + 1, total + self._table(ids[:, n])),
            (tf.constant(0), tf.zeros_like(rows[:, 0])),
        )
        return tf.reduce_mean(rows, 1) + total


class _SharedTable(keras.layers.Layer):
    """Looks rows of one table up twice."""

    def __init__(self) -> None:
        super().__init__()
        self._table = keras.layers.Embedding(parity.ROWS + 1, 4)

    def build(self, shape: Any) -> None:
        self._table.build(shape)

    def call(self, ids: Any) -> Any:
        return tf.reduce_mean(self._table(ids), 1) + self._table(ids[:, 0])


_LAYERS: dict[str, Callable[[], Any]] = {
    "inner function": _InnerFunction,
    "shared table": _SharedTable,
}


def _with_layer(make: Callable[[], Any], optimizer: Any) -> keras.Model:
    keras.utils.set_random_seed(4)
    model = keras.Sequential(
        [keras.Input((3,), dtype="int32"), make(), keras.layers.Dense(1)]
    )
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, "mse")
    return model


@pytest.mark.parametrize("layer", _LAYERS)
def test_layers_that_look_up_in_other_ways_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, layer: str
) -> None:
    def make() -> keras.Model:
        return _with_layer(
            _LAYERS[layer], keras.optimizers.SGD(0.1, momentum=0.9)
        )

    expected = parity.trained(make(), _DATA.of_all())
    parity.assert_same(_trained(cluster, make), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"sparse_update": "lazy"},
        {"sparse_update": "caught_up"},
        {"communication": tfps.CommunicationOptions(wire_dtype="bfloat16")},
    ],
    ids=str,
)
@pytest.mark.sample(cases=2)
def test_options_of_the_strategy_have_the_numbers_of_one_replica(
    cluster: tfps.LocalCluster, options: dict[str, Any]
) -> None:
    given = dict(options)
    sparse_update = given.pop("sparse_update", "exact")
    trained = [
        _trained(
            cluster,
            lambda: parity.new_model(keras.optimizers.Adam(0.01)),
            sparse_update=sparse_update,
            strategy_options=given | {"replicas_per_worker": replicas},
        )
        for replicas in (1, 2)
    ]
    parity.assert_same(
        trained[1],
        trained[0],
        # Stochastic or not, rounding of what travels sees other sums.
        1e-2 if given else parity.TOLERANCE,
    )
