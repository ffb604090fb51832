"""Tests that `sparse_update="caught_up"` gives the numbers of one process.

With one worker and one step in flight, the reference is single-process Keras,
whose optimizers get dense gradients, as in `parity_optimizers_test.py`.
"""

import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_ROWS = 500
_BATCH = 8
_STEPS = 60
_random = np.random.default_rng(0)
# A few ids are in every batch, most of them once in all steps.
_IDS = np.minimum(
    _random.zipf(1.3, (_STEPS * _BATCH, 2)) - 1, _random.integers(0, _ROWS)
).astype("int32")
_TARGETS = _random.integers(0, 2, (_STEPS * _BATCH, 1)).astype("float32")


def _dataset(context: Any = None) -> tf.data.Dataset:
    return (
        tf.data.Dataset.from_tensor_slices((_IDS, _TARGETS))
        .repeat()
        .batch(_BATCH)
    )


class _Tied(keras.layers.Layer):
    """Layer that looks up rows of a table, and multiplies by all of it."""

    def build(self, input_shape: Any) -> None:
        self.table = self.add_weight(
            shape=(_ROWS, 4), initializer="random_normal", name="embeddings"
        )
        self.built = True

    def call(self, ids: Any) -> Any:
        rows = keras.ops.take(self.table, ids, axis=0)
        mean = keras.ops.mean(rows, axis=1)
        return keras.ops.matmul(mean, keras.ops.transpose(self.table))[:, :3]


class _InBranch(_Tied):
    """Layer that looks up different rows of a table in two branches."""

    def call(self, ids: Any) -> Any:
        rows = tf.cond(
            tf.reduce_sum(ids) % 2 == 0,
            lambda: keras.ops.take(self.table, ids, axis=0),
            lambda: 2.0 * keras.ops.take(self.table, _ROWS - 1 - ids, axis=0),
        )
        return keras.ops.mean(rows, axis=1)


def _embeddings() -> keras.layers.Layer:
    return keras.layers.Embedding(_ROWS, 4)


def _model(
    make_optimizer: Callable[[], Any],
    make_layer: Callable[[], Any] = _embeddings,
) -> keras.Model:
    keras.utils.set_random_seed(3)
    ids = keras.Input((2,), dtype="int32")
    hidden = keras.layers.Flatten()(make_layer()(ids))
    model = keras.Model(
        ids, keras.layers.Dense(1, activation="sigmoid")(hidden)
    )
    model.compile(make_optimizer(), "binary_crossentropy")
    return model


def _with_dense_gradients(model: keras.Model) -> keras.Model:
    optimizer = model.optimizer
    apply = optimizer.apply
    optimizer.apply = lambda grads, variables=None: apply(
        [tf.convert_to_tensor(g) for g in grads], variables
    )
    return model


def _in_two(shape: Any, dtype: Any, axis: int = 0) -> list[int]:
    return [2 if shape[0] == _ROWS else 1] + [1] * (len(shape) - 1)


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        _in_two,
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
        sparse_update="caught_up",
    )
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


def _assert_same_weights(actual: keras.Model, expected: list[Any]) -> None:
    for mine, theirs in zip(actual.weights, expected, strict=True):
        np.testing.assert_allclose(
            mine.numpy(), theirs, atol=1e-5 + 1e-4 * np.abs(theirs).max()
        )


def _run(coordinator: tfps.ClusterCoordinator, function: Any) -> None:
    coordinator.schedule(function)
    coordinator.join()


def _adam() -> Any:
    return keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.02, 200, 0.9),
        weight_decay=0.05,
    )


def _in_one_process(
    make_layer: Callable[[], Any] = _embeddings,
) -> tuple[list[float], list[Any], float]:
    model = _with_dense_gradients(_model(_adam, make_layer))
    losses = model.fit(
        _dataset(), epochs=2, steps_per_epoch=_STEPS // 2, verbose=0
    ).history["loss"]
    loss = model.evaluate(_dataset(), steps=5, verbose=0)
    return losses, [w.numpy() for w in model.weights], loss


def test_rows_that_are_rare_catch_up_with_schedules_and_weight_decay(
    strategy: tfps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    losses, weights, loss = _in_one_process()
    with strategy.scope():
        model = _model(_adam)
    history = model.fit(
        tfps.DatasetCreator(_dataset),
        epochs=2,
        steps_per_epoch=_STEPS // 2,
        verbose=0,
    )
    np.testing.assert_allclose(history.history["loss"], losses, rtol=1e-4)
    # These lookups of the workers store nothing.
    np.testing.assert_allclose(
        model.evaluate(tfps.DatasetCreator(_dataset), steps=5, verbose=0),
        loss,
        rtol=1e-4,
    )
    _assert_same_weights(model, weights)
    # The chief's read stores its values, and training goes on from there.
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    _assert_same_weights(loaded, weights)
    before = model.optimizer.iterations.numpy()
    model.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=3, verbose=0)
    assert model.optimizer.iterations.numpy() == before + 3


@pytest.mark.parametrize("make_layer", [_Tied, _InBranch])
def test_a_table_that_is_read_otherwise_catches_up(
    strategy: tfps.ParameterServerStrategy,
    make_layer: Callable[[], keras.layers.Layer],
) -> None:
    """The table is read as a whole, or in branches of a conditional."""
    losses, weights, _ = _in_one_process(make_layer)
    with strategy.scope():
        model = _model(_adam, make_layer)
    history = model.fit(
        tfps.DatasetCreator(_dataset),
        epochs=2,
        steps_per_epoch=_STEPS // 2,
        verbose=0,
    )
    np.testing.assert_allclose(history.history["loss"], losses, rtol=1e-4)
    _assert_same_weights(model, weights)


def test_a_distributed_embedding_catches_up_as_an_embedding_does(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    table = tfps.layers.TableConfig("rows", _ROWS, 4, initializer="ones")
    weights = []
    for joint in (True, False):
        with strategy.scope():
            ids = keras.Input((2,), dtype="int32")
            if joint:
                rows = tfps.layers.DistributedEmbedding(
                    tfps.layers.FeatureConfig(
                        "ids", table, (_BATCH, 2), (_BATCH, 4)
                    )
                )(ids)
            else:
                layer = keras.layers.Embedding(
                    _ROWS, 4, embeddings_initializer="ones"
                )
                rows = keras.ops.mean(layer(ids), axis=1)
            outputs = keras.layers.Dense(1, kernel_initializer="ones")(rows)
            model = keras.Model(ids, outputs)
            model.compile(keras.optimizers.Adam(0.01), "mse")
        model.fit(
            tfps.DatasetCreator(_dataset), steps_per_epoch=_STEPS, verbose=0
        )
        weights.append([w.numpy() for w in model.weights])
    for mine, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.sample(cases=1)
def test_another_optimizer_goes_on_where_the_first_one_was(
    strategy: tfps.ParameterServerStrategy, momentum: float
) -> None:
    """Without momentum, the second one has nothing to catch up with."""

    def first() -> Any:
        # What it leaves of a row in its last steps would shrink what the
        # second one has added before, if it came after that.
        return keras.optimizers.AdamW(0.02, weight_decay=2.0)

    def second() -> Any:
        return keras.optimizers.SGD(1.0, momentum=momentum)

    model = _with_dense_gradients(_model(first))
    model.fit(_dataset(), steps_per_epoch=20, verbose=0)
    model.compile(second(), "mse")
    _with_dense_gradients(model)
    model.fit(_dataset(), steps_per_epoch=20, verbose=0)
    expected = [w.numpy() for w in model.weights]
    with strategy.scope():
        model = _model(first)
    dataset = tfps.DatasetCreator(_dataset)
    model.fit(dataset, steps_per_epoch=20, verbose=0)
    model.compile(second(), "mse")
    model.fit(dataset, steps_per_epoch=20, verbose=0)
    shards = model.trainable_variables[0].value.shards
    assert [s.unseen_steps is None for s in shards] == [not momentum] * 2
    _assert_same_weights(model, expected)


def test_eager_steps_catch_up(strategy: tfps.ParameterServerStrategy) -> None:
    model = _with_dense_gradients(_model(_adam))
    model.fit(_dataset(), steps_per_epoch=12, verbose=0)
    expected = [w.numpy() for w in model.weights]
    with strategy.scope():
        model = _model(_adam)
    model.run_eagerly = True
    model.fit(_dataset(), steps_per_epoch=12, verbose=0)
    _assert_same_weights(model, expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Adam(use_ema=True),
        lambda: keras.optimizers.Adam(gradient_accumulation_steps=2),
        lambda: keras.optimizers.Adam(beta_1=0.9, beta_2=0.5),
        lambda: keras.optimizers.Ftrl(l2_shrinkage_regularization_strength=0.1),
    ],
)
def test_what_cannot_catch_up_is_refused_before_a_step(
    strategy: tfps.ParameterServerStrategy, make: Any
) -> None:
    with strategy.scope():
        model = _model(make)
    with (
        pytest.raises(tfps.errors.UnsupportedError, match="caught_up"),
        strategy.scope(),
    ):
        model.optimizer.build(model.trainable_variables)


def test_a_custom_loop_says_that_its_optimizer_is_to_be_built_first(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        model = _model(_adam)
        optimizer = _adam()
    ids, targets = tf.constant(_IDS[:8]), tf.constant(_TARGETS[:8])

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(ids) - targets) ** 2)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    with pytest.raises(tfps.errors.UnsupportedError, match=r"\.build\("):
        _run(coordinator, step)
    with strategy.scope():
        optimizer = _adam()
        optimizer.build(model.trainable_variables)

    @tf.function
    def step_of_built() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(ids) - targets) ** 2)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    for _ in range(3):
        coordinator.schedule(step_of_built)
    coordinator.join()
    assert optimizer.iterations.numpy() == 3
    assert np.isfinite(model.get_weights()[0]).all()


def test_rows_that_a_function_or_the_chief_assigns_are_of_now(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        model = _model(_adam)
    dataset = tfps.DatasetCreator(_dataset)
    model.fit(dataset, steps_per_epoch=_STEPS, verbose=0)
    table = model.trainable_variables[0].value
    before = table.numpy()
    model.fit(dataset, steps_per_epoch=_STEPS, verbose=0)

    @tf.function
    def assign() -> None:
        table.scatter_update(tf.IndexedSlices(tf.ones([2, 4]), [3, 400]))
        table.scatter_add(tf.IndexedSlices(tf.ones([1, 4]), [3]))
        table.scatter_nd_update([[7, 1]], [5.0])

    _run(coordinator, assign)
    rows = tf.gather(table, [3, 400, 499])
    np.testing.assert_array_equal(rows[0], [2.0] * 4)
    np.testing.assert_array_equal(rows[1], [1.0] * 4)
    assert float(tf.gather(table, [7])[0, 1]) == 5.0
    # The other rows have moved, and were read in their present state.
    assert np.abs(rows[2] - before[499]).max() > 0
    np.testing.assert_allclose(table.numpy()[499], rows[2], atol=1e-6)
    np.testing.assert_array_equal(table.numpy()[3], [2.0] * 4)
    _run(coordinator, tf.function(lambda: table.assign(table * 0.0 + 3.0)))
    np.testing.assert_array_equal(table.numpy(), np.full([_ROWS, 4], 3.0))
    table.assign(tf.ones_like(table.numpy()))
    np.testing.assert_array_equal(table.numpy(), np.ones([_ROWS, 4]))


def test_functions_of_the_user_see_rows_of_now(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        model = _model(_adam)
    dataset = tfps.DatasetCreator(_dataset)
    table = model.trainable_variables[0].value
    ids = [3, 120, 400, 499]

    @tf.function
    def before() -> tf.Tensor:
        return tf.gather(table, ids)

    def double(rows: Any, gradient: Any) -> None:
        rows.assign(2.0 * rows + gradient)

    @tf.function
    def update() -> None:
        ones = tf.IndexedSlices(tf.ones([4, 4]), tf.constant(ids))
        strategy.extended.update(table, double, args=(ones,))

    @tf.function
    def run() -> None:
        strategy.run(lambda: table.assign(3.0 * table + 1.0))

    for change, factor in ((update, 2.0), (run, 3.0)):
        model.fit(dataset, steps_per_epoch=30, verbose=0)
        rows = coordinator.schedule(before).fetch()
        _run(coordinator, change)
        after = coordinator.schedule(before).fetch()
        np.testing.assert_allclose(after, factor * rows + 1.0, rtol=1e-5)
        np.testing.assert_allclose(
            table.numpy()[ids], factor * rows + 1.0, rtol=1e-5
        )


def test_a_step_sends_no_more_messages_than_a_lazy_one(
    cluster: tfps.LocalCluster, strategy: tfps.ParameterServerStrategy
) -> None:
    messages = {}
    lazy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        _in_two,
        sparse_update="lazy",
    )
    try:
        for each in (lazy, strategy):
            with each.scope():
                model = _model(_adam)
            model.fit(
                tfps.DatasetCreator(_dataset), steps_per_epoch=3, verbose=0
            )
            explanation = each.explain(model, print_fn=None)
            messages[each.sparse_update] = [
                sorted(
                    (sent.source, sent.destination, sent.wave)
                    for sent in body.sent
                )
                for body in explanation.bodies
            ]
    finally:
        tfps.ClusterCoordinator(lazy).close()
    assert messages["caught_up"] == messages["lazy"]
    optimizer = model.optimizer
    (clock,) = optimizer.caught_up_tables.clocks.values()
    assert len(clock.variables) == 3
    assert {scalar.device for scalar in clock.variables} == {
        optimizer.iterations.value.device
    }


@pytest.mark.parametrize("in_new_model", [False, True])
@pytest.mark.sample(cases=1)
def test_a_checkpoint_has_what_rows_have_still_to_see(
    strategy: tfps.ParameterServerStrategy,
    tmp_path: pathlib.Path,
    in_new_model: bool,
) -> None:
    model = _with_dense_gradients(_model(_adam))
    for _ in range(2):
        model.fit(_dataset(), steps_per_epoch=20, verbose=0)
    expected = [w.numpy() for w in model.weights]
    dataset = tfps.DatasetCreator(_dataset)
    with strategy.scope():
        model = _model(_adam)
    model.fit(dataset, steps_per_epoch=20, verbose=0)
    path = tfps.Checkpoint(model=model).write(tmp_path / "checkpoint")
    # Readers of the checkpoint find the present rows.
    reader = tf.train.load_checkpoint(path)
    (table,) = (
        reader.get_tensor(name)
        for name, shape in reader.get_variable_to_shape_map().items()
        if shape == [_ROWS, 4] and "optimizer" not in name
    )
    np.testing.assert_array_equal(table, model.get_weights()[0])
    # The following training is lost, although the chief has read its result.
    model.fit(dataset, steps_per_epoch=20, verbose=0)
    model.get_weights()
    if in_new_model:
        with strategy.scope():
            model = _model(_adam)
            model.optimizer.build(model.trainable_variables)
    tfps.Checkpoint(model=model).read(path)
    model.fit(dataset, steps_per_epoch=20, verbose=0)
    _assert_same_weights(model, expected)
