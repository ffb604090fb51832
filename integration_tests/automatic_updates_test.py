"""Tests of `sparse_update="auto"`, the default: exact where that is cheap.

With one worker and one step in flight, the reference is single-process Keras,
whose optimizers get dense gradients.
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
from tfps_plugin.training.optimizers.automatic import automatic_updates
from tfps_plugin.training.optimizers.automatic import ps_speed

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_ROWS = 400
_BATCH = 8
_STEPS = 60
_random = np.random.default_rng(0)
# Most ids occur once in all steps.
_IDS = np.minimum(
    _random.zipf(1.3, (_STEPS * _BATCH, 2)) - 1,
    _random.integers(0, _ROWS, (_STEPS * _BATCH, 2)),
).astype("int32")
_TARGETS = _random.integers(0, 2, (_STEPS * _BATCH, 1)).astype("float32")


def _dataset(context: Any = None) -> tf.data.Dataset:
    return (
        tf.data.Dataset.from_tensor_slices((_IDS, _TARGETS))
        .repeat()
        .batch(_BATCH)
    )


def _model() -> keras.Model:
    keras.utils.set_random_seed(3)
    ids = keras.Input((2,), dtype="int32")
    rows = keras.layers.Embedding(_ROWS, 4, name="rows")(ids)
    model = keras.Model(
        ids,
        keras.layers.Dense(1, activation="sigmoid")(
            keras.layers.Flatten()(rows)
        ),
    )
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    return model


def _in_one_process(state: list[np.ndarray] | None = None) -> list[np.ndarray]:
    """Returns the state after as many steps in one process, from a state."""
    model = _model()
    optimizer = model.optimizer
    apply = optimizer.apply
    optimizer.apply = lambda grads, variables=None: apply(
        [tf.convert_to_tensor(g) for g in grads], variables
    )
    if state is not None:
        optimizer.build(model.trainable_variables)
        for variable, value in zip(_variables(model), state, strict=True):
            variable.assign(value)
    _fit(model, _dataset())
    return _state(model)


def _variables(model: keras.Model) -> list[Any]:
    return [*model.weights, *model.optimizer.variables]


def _state(model: keras.Model) -> list[np.ndarray]:
    return [np.asarray(variable) for variable in _variables(model)]


def _fit(model: keras.Model, data: Any) -> None:
    model.fit(data, steps_per_epoch=_STEPS, verbose=0)


def _assert_same(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for mine, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(
            mine, theirs, atol=1e-6 + 1e-4 * np.abs(theirs).max()
        )


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        lambda shape, dtype, axis=0: (
            [2 if shape[0] == _ROWS else 1] + [1] * (len(shape) - 1)
        ),
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
    )
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


def test_small_tables_have_the_numbers_of_one_process(
    strategy: tfps.ParameterServerStrategy, caplog: pytest.LogCaptureFixture
) -> None:
    with strategy.scope():
        model = _model()
    with caplog.at_level(logging.INFO, "tfps_plugin"):
        _fit(model, tfps.DatasetCreator(_dataset))
    _assert_same(_state(model), _in_one_process())
    (told,) = [m for m in caplog.messages if "sparse_update" in m]
    assert "updates all rows of rows/embeddings (400, 4)" in told


def test_a_custom_loop_has_them_too(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        model = _model()
        optimizer = model.optimizer

    @tf.function
    def step(ids: tf.Tensor, targets: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                keras.losses.binary_crossentropy(
                    targets, model(ids, training=True)
                )
            )
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    for batch in _dataset().take(_STEPS):
        coordinator.schedule(step, args=batch)
    coordinator.join()
    _assert_same(_state(model), _in_one_process())


def test_variables_of_tensorflow_have_them_too(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    values = _random.normal(size=(_ROWS, 4)).astype("float32")

    def trained(create: Callable[[], Any], run: Callable[[Any], None]) -> Any:
        table = create()
        optimizer = keras.optimizers.Adam(0.1)
        optimizer.build([table])

        @tf.function
        def step(ids: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(tf.gather(table, ids)))
            gradient = tape.gradient(loss, table)
            if not isinstance(table, tfps.ShardedVariable):
                gradient = tf.convert_to_tensor(gradient)
            optimizer.apply([gradient], [table])

        for ids in ([1, 2], [3, 300], [2, 4]):
            run(lambda ids=ids: step(tf.constant(ids)))
        return table.numpy()

    expected = trained(lambda: tf.Variable(values), lambda call: call())
    coordinator = tfps.ClusterCoordinator(strategy)

    def schedule(call: Callable[[], Any]) -> None:
        coordinator.schedule(call)
        coordinator.join()

    with strategy.scope():
        actual = trained(lambda: tf.Variable(values, name="plain"), schedule)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


def test_variables_from_outside_of_the_scope_are_updated_by_rows(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    table = tf.Variable(np.zeros((10, 2), "float32"))
    with strategy.scope():
        optimizer = keras.optimizers.Adam(0.1)
        optimizer.build([table])
        optimizer.apply(
            [tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3]))], [table]
        )
    expected = np.zeros((10, 2))
    expected[3] = -0.1
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(lambda: tfps.DatasetCreator(_dataset), id="workers read"),
        pytest.param(_dataset, id="the chief reads"),
    ],
)
def test_a_step_that_takes_long_makes_tables_exact_in_the_midst_of_fit(
    strategy: tfps.ParameterServerStrategy,
    data: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nothing is cheap before steps are measured, and everything after that.
    monkeypatch.setattr(automatic_updates, "_SECONDS_OF_A_STEP_AT_FIRST", 0.0)
    monkeypatch.setattr(ps_speed, "seconds_per_element", lambda device: 1e-15)
    with strategy.scope():
        model = _model()
    _fit(model, data())
    choice = automatic_updates.of(model.optimizer)
    table = model.get_layer("rows").embeddings
    assert choice.version == 1
    assert choice.is_exact(table)
    before = _state(model)
    _fit(model, data())
    after = _state(model)
    _assert_same(after, _in_one_process(before))
    assert choice.version == 1


def test_a_table_that_is_too_big_is_updated_by_rows(
    strategy: tfps.ParameterServerStrategy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(ps_speed, "seconds_per_element", lambda device: 1.0)
    with strategy.scope():
        model = _model()
    with caplog.at_level(logging.INFO, "tfps_plugin"):
        _fit(model, tfps.DatasetCreator(_dataset))
    (told,) = [r for r in caplog.records if "sparse_update" in r.getMessage()]
    assert told.levelno == logging.WARNING
    assert "rows of rows/embeddings (400, 4) alone" in told.getMessage()
    assert not automatic_updates.of(model.optimizer).version
    expected = _in_one_process()
    with pytest.raises(AssertionError):
        _assert_same(_state(model), expected)
