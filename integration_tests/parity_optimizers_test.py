"""Tests that every optimizer gives the numbers of one process, on tables too.

With one worker, one step in flight, a fixed seed and `sparse_update="exact"`,
single-process Keras is the reference, with one correction. If an id occurs
twice in a batch, Keras's optimizers see two gradients instead of their sum;
the reference here gets the sum.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import shared_optimizers
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_ROWS = 60
# Rows of a variable -> number of its shards: three tables, and the kernel of a
# dense layer.
_SHARDS = {_ROWS: 1, _ROWS + 1: 2, _ROWS + 2: 3, 36: 2}
_BATCH = 16
_BATCHES = 10
_STEPS = 50
_TARGETS = np.random.default_rng(1).integers(0, 2, (_BATCH * _BATCHES, 1))

_optimizers = keras.optimizers

_EVERY = shared_optimizers.EVERY
_OPTIONS = shared_optimizers.OPTIONS
_WHOLE_MATRIX = shared_optimizers.WHOLE_MATRIX

_BY_ROWS = _EVERY | _OPTIONS


def _repeated(context: Any = None) -> tf.data.Dataset:
    """Returns batches with repeated ids, even within examples."""
    ids = np.random.default_rng(5).integers(0, _ROWS, (len(_TARGETS), 3))
    ids[:, 1] = ids[:, 0]
    return _dataset(ids)


def _unique(context: Any = None) -> tf.data.Dataset:
    """Returns batches in which no id occurs twice."""
    random = np.random.default_rng(5)
    return _dataset(
        np.concatenate(
            [
                random.permutation(_ROWS)[: 3 * _BATCH].reshape(_BATCH, 3)
                for _ in range(_BATCHES)
            ]
        )
    )


def _dataset(ids: np.ndarray) -> tf.data.Dataset:
    return (
        tf.data.Dataset.from_tensor_slices(
            (ids.astype("int32"), _TARGETS.astype("float32"))
        )
        .repeat()
        .batch(_BATCH)
    )


def _cut(shape: Any, dtype: Any, axis: int = 0) -> list[int]:
    return [_SHARDS.get(shape[0], 1)] + [1] * (len(shape) - 1)


def _model(optimizer: Any, *embeddings: dict[str, Any]) -> keras.Model:
    """Returns a model that looks up the same ids in three tables.

    The tables have different numbers of shards.

    Args:
        optimizer: Optimizer of the model.
        *embeddings: Options of each table, if there are any.
    """
    keras.utils.set_random_seed(3)
    ids = keras.Input((3,), dtype="int32")
    rows = [
        keras.layers.Embedding(_ROWS + more, 4, **options)(ids)
        for more, options in enumerate(embeddings or [{}] * 3)
    ]
    hidden = keras.layers.Flatten()(keras.layers.Concatenate()(rows))
    hidden = keras.layers.Dense(8, activation="relu")(hidden)
    hidden = keras.layers.BatchNormalization()(hidden)
    model = keras.Model(
        ids, keras.layers.Dense(1, activation="sigmoid")(hidden)
    )
    # If an optimizer is built inside the step, Keras first resets the initial
    # state of ScheduleFreeAdamW.
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    return model


@functools.cache
def _in_one_process(name: str, summing: bool) -> Any:
    optimizer = (_BY_ROWS | _WHOLE_MATRIX)[name]()
    model = _model(
        shared_optimizers.summing(optimizer) if summing else optimizer
    )
    dataset = _repeated() if summing else _unique()
    history = model.fit(dataset, steps_per_epoch=_STEPS, verbose=0)
    # Convert to arrays while they can be read: connecting to another cluster
    # invalidates earlier variables.
    return (
        history.history["loss"],
        [v.numpy() for v in model.variables],
        [v.numpy() for v in model.optimizer.variables],
    )


def _on_cluster(
    cluster: tfps.LocalCluster,
    make: Callable[[], keras.Model],
    dataset_fn: Any,
    partitioner: Any = _cut,
    sparse_update: Any = "exact",
    **options: Any,
) -> Any:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        partitioner,
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
        sparse_update=sparse_update,
    )
    try:
        with strategy.scope():
            model = make()
        history = model.fit(
            tfps.DatasetCreator(dataset_fn),
            steps_per_epoch=_STEPS,
            verbose=0,
            **options,
        )
        return (
            history.history["loss"],
            [v.numpy() for v in model.variables],
            [v.numpy() for v in model.optimizer.variables],
        )
    finally:
        tfps.ClusterCoordinator(strategy).close()


def _assert_equal(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5)
    for mine, theirs in zip(
        [*actual[1], *actual[2]], [*expected[1], *expected[2]], strict=True
    ):
        scale = np.abs(theirs).max() + 1e-6
        np.testing.assert_allclose(mine / scale, theirs / scale, atol=2e-5)


@pytest.mark.sample(cases=2)
@pytest.mark.parametrize("name", _BY_ROWS)
def test_every_optimizer_and_option_with_repeated_ids(
    cluster: tfps.LocalCluster, name: str
) -> None:
    expected = _in_one_process(name, summing=True)
    actual = _on_cluster(cluster, lambda: _model(_BY_ROWS[name]()), _repeated)
    _assert_equal(actual, expected)


_CAUGHT_UP: dict[str, Callable[[], Any]] = {
    name: make for name, make in _EVERY.items() if name != "ScheduleFreeAdamW"
} | {
    "clipnorm": _OPTIONS["clipnorm"],
    "global_clipnorm": _OPTIONS["global_clipnorm"],
    "LossScaleOptimizer": _OPTIONS["LossScaleOptimizer"],
}


@pytest.mark.sample(cases=2)
@pytest.mark.parametrize("name", _CAUGHT_UP)
def test_rows_that_catch_up_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str
) -> None:
    expected = _in_one_process(name, summing=True)
    actual = _on_cluster(
        cluster,
        lambda: _model(_CAUGHT_UP[name]()),
        _repeated,
        sparse_update="caught_up",
    )
    _assert_equal(actual, expected)


@pytest.mark.compat
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_unmodified_keras_is_the_truth_with_unique_ids(
    cluster: tfps.LocalCluster, name: str
) -> None:
    expected = _in_one_process(name, summing=False)
    actual = _on_cluster(cluster, lambda: _model(_EVERY[name]()), _unique)
    _assert_equal(actual, expected)


@pytest.mark.parametrize("name", _WHOLE_MATRIX)
def test_optimizers_of_whole_matrices_are_exact_on_whole_variables(
    cluster: tfps.LocalCluster, name: str
) -> None:
    expected = _in_one_process(name, summing=True)
    actual = _on_cluster(
        cluster, lambda: _model(_WHOLE_MATRIX[name]()), _repeated, None
    )
    _assert_equal(actual, expected)


@pytest.mark.parametrize("name", _WHOLE_MATRIX)
def test_optimizers_of_whole_matrices_refuse_shards_in_compile(
    cluster: tfps.LocalCluster, name: str
) -> None:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, tfps.partitioners.FixedShardsPartitioner(2)
    )
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                keras.layers.Embedding(_ROWS, 4),
                keras.layers.Flatten(),
            ]
        )
        with pytest.raises(
            tfps.errors.UnsupportedError, match=r"embeddings' is cut into 2"
        ):
            model.compile(_WHOLE_MATRIX[name](), "mse")


def test_constraints_of_rows(cluster: tfps.LocalCluster) -> None:
    """There is one of each kind, on a table of 1, of 2 and of 3 shards."""
    constraints = [
        keras.constraints.UnitNorm(axis=-1),
        keras.constraints.MaxNorm(0.05, axis=1),
        keras.constraints.NonNeg(),
    ]

    def make(optimizer: Any) -> keras.Model:
        return _model(
            optimizer,
            *[{"embeddings_constraint": each} for each in constraints],
        )

    alone = make(shared_optimizers.summing(_optimizers.Adam(0.01)))
    alone.fit(_repeated(), steps_per_epoch=_STEPS, verbose=0)
    expected = [v.numpy() for v in alone.variables]
    actual = _on_cluster(
        cluster, lambda: make(_optimizers.Adam(0.01)), _repeated
    )
    for mine, theirs in zip(actual[1], expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_constraint_of_the_whole_table_is_refused(
    cluster: tfps.LocalCluster,
) -> None:
    with pytest.raises(
        tfps.errors.UnsupportedError, match=r"axis=0.*another axis"
    ):
        _on_cluster(
            cluster,
            lambda: _model(
                _optimizers.Adam(),
                *[
                    {
                        "embeddings_constraint": keras.constraints.MaxNorm(
                            1, axis=0
                        )
                    }
                ]
                * 3,
            ),
            _repeated,
        )


def test_swapping_averages_in_and_out(
    cluster: tfps.LocalCluster,
) -> None:
    """The model ends with the same averages as in one process."""

    def make(optimizer: Any) -> keras.Model:
        return _model(optimizer)

    def adam() -> Any:
        return _optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9)

    alone = make(shared_optimizers.summing(adam()))
    alone.fit(
        _repeated(),
        steps_per_epoch=_STEPS,
        verbose=0,
        callbacks=[keras.callbacks.SwapEMAWeights()],
    )
    expected = [v.numpy() for v in alone.variables]
    actual = _on_cluster(
        cluster,
        lambda: make(adam()),
        _repeated,
        callbacks=[keras.callbacks.SwapEMAWeights()],
    )
    for mine, theirs in zip(actual[1], expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
