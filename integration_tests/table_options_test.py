"""Tests of other options of tables: penalties, averages, lazy updates.

With one worker, one step in flight and a fixed seed, the reference is one
process that computes the lazy form.
"""

import logging
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
_BATCH = 16
_STEPS = 30
_IDS = np.random.default_rng(5).integers(0, _ROWS - 10, (10 * _BATCH, 3))
_TARGETS = np.random.default_rng(1).integers(0, 2, (10 * _BATCH, 1))


def _dataset(context: Any = None) -> tf.data.Dataset:
    return (
        tf.data.Dataset.from_tensor_slices(
            (_IDS.astype("int32"), _TARGETS.astype("float32"))
        )
        .repeat()
        .batch(_BATCH)
    )


def _model(optimizer: Any, layer: Any, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            layer(_ROWS, 4, name="table", **options),
            keras.layers.Flatten(),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(optimizer, "binary_crossentropy")
    return model


def _on_cluster(
    cluster: tfps.LocalCluster,
    make: Callable[[], keras.Model],
    num_shards: int,
    sparse_update: Any = "lazy",
) -> tuple[list[float], list[np.ndarray], list[np.ndarray]]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(num_shards),
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
        sparse_update=sparse_update,
    )
    try:
        with strategy.scope():
            model = make()
        history = model.fit(
            tfps.DatasetCreator(_dataset), steps_per_epoch=_STEPS, verbose=0
        )
        return (
            history.history["loss"],
            [v.numpy() for v in model.variables],
            [v.numpy() for v in model.optimizer.variables],
        )
    finally:
        tfps.ClusterCoordinator(strategy).close()


class _PenalisingRows(keras.layers.Embedding):
    """Layer with the lazy penalty, on the distinct rows of a batch."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        distinct, _ = tf.unique(tf.reshape(inputs, [-1]))
        rows = keras.ops.take(self.embeddings, distinct, axis=0)
        self.add_loss(0.05 * keras.ops.sum(keras.ops.square(rows)))
        return super().call(inputs)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_penalty_is_on_the_rows_that_a_batch_looks_up(
    cluster: tfps.LocalCluster,
    num_shards: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    alone = _model(keras.optimizers.SGD(0.1), _PenalisingRows)
    expected = alone.fit(_dataset(), steps_per_epoch=_STEPS, verbose=0)
    weights = [v.numpy() for v in alone.variables]
    with caplog.at_level(logging.WARNING, logger="tfps_plugin"):
        losses, actual, _ = _on_cluster(
            cluster,
            lambda: _model(
                keras.optimizers.SGD(0.1),
                keras.layers.Embedding,
                embeddings_regularizer=keras.regularizers.L2(0.05),
            ),
            num_shards,
        )
    np.testing.assert_allclose(losses, expected.history["loss"], rtol=1e-5)
    for mine, theirs in zip(actual, weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    told = [r for r in caplog.records if "regularizer" in r.getMessage()]
    assert len(told) == 1, "once, not at every trace"
    assert "table/embeddings" in told[0].getMessage()


@pytest.mark.parametrize("num_shards", [1, 3])
def test_an_exact_penalty_is_on_all_rows(
    cluster: tfps.LocalCluster, num_shards: int
) -> None:
    def make() -> keras.Model:
        return _model(
            keras.optimizers.Adam(0.01),
            keras.layers.Embedding,
            embeddings_regularizer=keras.regularizers.L1(0.05),
        )

    alone = make()
    expected = alone.fit(_dataset(), steps_per_epoch=_STEPS, verbose=0)
    weights = [v.numpy() for v in alone.variables]
    losses, actual, _ = _on_cluster(cluster, make, num_shards, "exact")
    np.testing.assert_allclose(losses, expected.history["loss"], rtol=1e-5)
    for mine, theirs in zip(actual, weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def _lazily(
    optimizer: Any, table: np.ndarray, gradients: list[tuple[Any, Any]]
) -> np.ndarray:
    """Applies Keras's optimizer to each row that a batch touches.

    Each row is a variable with slots of its own; all share the step number.
    """
    rows = [keras.Variable(row[None]) for row in table]
    optimizer.build(rows)
    for ids, values in gradients:
        for row in np.unique(ids):
            gradient = values[ids == row].sum(0, keepdims=True)
            if optimizer.weight_decay:
                optimizer._apply_weight_decay([rows[row]])
            optimizer.update_step(
                tf.constant(gradient), rows[row], optimizer.learning_rate
            )
        optimizer.iterations.assign_add(1)
    return np.concatenate([row.numpy() for row in rows])


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {"momentum": 0.9}),
        ("Adam", {}),
        ("AdamW", {"weight_decay": 0.1}),
        ("RMSprop", {"centered": True}),
        ("Lion", {}),
        ("Ftrl", {}),
        ("Adadelta", {}),
        ("Adamax", {}),
    ],
)
def test_lazy_updates_are_those_of_single_rows(
    cluster: tfps.LocalCluster, name: str, options: Any, num_shards: int
) -> None:
    """The loss is linear in the rows, so the gradients are known."""
    random = np.random.default_rng(7)
    table = random.normal(size=(_ROWS, 4)).astype("float32")
    batches = [
        (
            random.integers(0, _ROWS - 10, 20),
            random.normal(size=(20, 4)).astype("float32"),
        )
        for _ in range(5)
    ]
    make = getattr(keras.optimizers, name)
    expected = _lazily(make(0.05, **options), table, batches)
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(num_shards),
        sparse_update="lazy",
    )
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        variable = keras.Variable(table, name="table")
        optimizer = make(0.05, **options)
        optimizer.build([variable])

    @tf.function
    def step(ids: tf.Tensor, values: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(variable, ids) * values)
        gradients = tape.gradient(loss, [variable])
        optimizer.apply(gradients, [variable])

    try:
        for ids, values in batches:
            coordinator.schedule(
                step, args=(tf.constant(ids), tf.constant(values))
            )
            coordinator.join()
        actual = variable.numpy()
        steps = int(optimizer.iterations.numpy())
    finally:
        coordinator.close()
    assert steps == len(batches)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(actual[-10:], table[-10:])


@pytest.fixture
def coordinator(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ClusterCoordinator]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, tfps.partitioners.FixedShardsPartitioner(2)
    )
    coordinator = tfps.ClusterCoordinator(strategy)
    yield coordinator
    coordinator.close()


def test_an_optimizer_may_train_variables_of_tensorflow(
    coordinator: tfps.ClusterCoordinator,
) -> None:
    with coordinator.strategy.scope():
        variable = tf.Variable([1.0, 2.0], name="plain")
        optimizer = keras.optimizers.Adam(0.1, use_ema=True)
        optimizer.build([variable])

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(variable))
        optimizer.apply(tape.gradient(loss, [variable]), [variable])

    coordinator.schedule(step)
    coordinator.join()
    np.testing.assert_allclose(variable.numpy(), [0.9, 1.9], rtol=1e-4)


def test_averages_begin_with_what_the_weights_are_at_the_first_step(
    coordinator: tfps.ClusterCoordinator,
) -> None:
    """An example is a pretrained model, loaded into a built one."""
    with coordinator.strategy.scope():
        table = keras.Variable(np.zeros((10, 2), "float32"), name="table")
        optimizer = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9)
        optimizer.build([table])
    table.assign(np.full((10, 2), 3.0, "float32"))

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [1, 8]))
        optimizer.apply(tape.gradient(loss, [table]), [table])

    for _ in range(2):
        coordinator.schedule(step)
        coordinator.join()
    (average,) = optimizer._model_variables_moving_average
    expected = np.full((10, 2), 3.0)
    # 2.5 after the first step, and then a tenth of the way to 2.0.
    expected[[1, 8]] = 2.45
    np.testing.assert_allclose(average.numpy(), expected, rtol=1e-6)


def test_numbers_are_added_to_whole_variables(
    coordinator: tfps.ClusterCoordinator,
) -> None:
    with coordinator.strategy.scope():
        counts = keras.Variable(np.zeros(5, "float32"), trainable=False)

    @tf.function
    def step() -> None:
        counts.assign_add(1.0)

    coordinator.schedule(step)
    coordinator.join()
    np.testing.assert_array_equal(counts.numpy(), np.ones(5))


def test_an_optimizer_whose_own_code_would_be_left_out_is_refused(
    coordinator: tfps.ClusterCoordinator,
) -> None:
    class Averaging(keras.optimizers.SGD):
        def _update_model_variables_moving_average(
            self, variables: Any
        ) -> None:
            raise AssertionError

    with coordinator.strategy.scope():
        variable = keras.Variable([1.0])
        optimizer = Averaging(0.1)
        with pytest.raises(
            tfps.errors.UnsupportedError, match="_moving_average"
        ):
            optimizer.build([variable])


def test_clipping_of_ones_own_is_used(
    coordinator: tfps.ClusterCoordinator,
) -> None:
    class Signs(keras.optimizers.SGD):
        def _clip_gradients(self, grads: Any) -> Any:
            return [tf.sign(g) for g in grads]

    with coordinator.strategy.scope():
        variable = keras.Variable([1.0, 2.0])
        optimizer = Signs(0.5)
        optimizer.build([variable])

    @tf.function
    def step() -> None:
        optimizer.apply([tf.constant([7.0, -7.0])], [variable])

    coordinator.schedule(step)
    coordinator.join()
    np.testing.assert_allclose(variable.numpy(), [0.5, 2.5])
