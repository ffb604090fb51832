"""Tests that workers in step give the numbers of one process, by optimizer.

The reference is a process that trains with the batches of all workers as one.
If an id occurs twice in a batch, Keras's optimizers see two gradients instead
of their sum; the reference here gets the sum.
"""

import functools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import pytest
import shared_optimizers
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_ROWS = 60
# Rows of a variable -> number of its shards: three tables, and the kernel of a
# dense layer.
_SHARDS = {_ROWS: 1, _ROWS + 1: 2, _ROWS + 2: 3, 36: 2}
_WORKERS = 2
_STEPS = 20
_BATCH = 16
_RANDOM = np.random.default_rng(5)
# Workers, steps, examples, ids of an example; ids repeat within examples, too.
_IDS = _RANDOM.integers(0, _ROWS, (_WORKERS, _STEPS, _BATCH, 3)).astype("int32")
_IDS[..., 1] = _IDS[..., 0]
_TARGETS = _RANDOM.normal(size=(_WORKERS, _STEPS, _BATCH, 1)).astype("float32")

# Largest difference, as a part of the largest value of a variable. Sums in
# another order differ by their rounding, which Adam amplifies: it divides by
# the root of small squares, most of all where gradients are clipped.
_TOLERANCE = 1e-5
_TOLERANCES = {
    "Adam, amsgrad": 2e-5,
    "clipnorm": 2e-5,
    "global_clipnorm": 2e-5,
    "accumulation": 2e-5,
}

_optimizers = keras.optimizers

_CASES: dict[str, Callable[[], Any]] = (
    shared_optimizers.EVERY
    | shared_optimizers.OPTIONS
    | {
        "SGD, plain": lambda: _optimizers.SGD(0.1),
        "SGD, momentum": lambda: _optimizers.SGD(0.1, momentum=0.9),
        "SGD, decay": lambda: _optimizers.SGD(0.1, weight_decay=0.1),
        "SGD, clipnorm": lambda: _optimizers.SGD(0.1, clipnorm=0.01),
        "SGD, global_clipnorm": lambda: _optimizers.SGD(
            0.1, global_clipnorm=0.02
        ),
        "Adagrad, accumulation": lambda: _optimizers.Adagrad(
            0.1, gradient_accumulation_steps=3
        ),
        "Adam, accumulation, overwriting": lambda: _optimizers.Adam(
            0.01,
            gradient_accumulation_steps=4,
            use_ema=True,
            ema_momentum=0.9,
            ema_overwrite_frequency=7,
        ),
        "Nadam, schedule": lambda: _optimizers.Nadam(
            _optimizers.schedules.CosineDecay(0.05, 15)
        ),
        "LossScaleOptimizer, accumulation": lambda: (
            _optimizers.LossScaleOptimizer(
                _optimizers.Adam(0.01, gradient_accumulation_steps=3),
                dynamic_growth_steps=6,
            )
        ),
    }
)

if hasattr(_optimizers, "MultiOptimizer"):
    # Since Keras 3.15. Both clip by a norm, but not by the same.
    _CASES["MultiOptimizer, norms"] = lambda: _optimizers.MultiOptimizer(
        _optimizers.OptimizerMap(
            _optimizers.SGD(0.1, global_clipnorm=0.02),
            {".*embed.*": _optimizers.SGD(0.1, clipnorm=0.01)},
        )
    )
    _CASES["MultiOptimizer, global norms"] = lambda: _optimizers.MultiOptimizer(
        _optimizers.OptimizerMap(
            _optimizers.SGD(0.1, global_clipnorm=0.02),
            {
                ".*embed.*": _optimizers.SGD(
                    0.1, global_clipnorm=0.01, gradient_accumulation_steps=3
                )
            },
        )
    )


class _Trained(NamedTuple):
    """Model after training, as arrays.

    Attributes:
        losses: The loss of each epoch.
        weights: The weights of the model.
        state: The variables of the optimizer.
    """

    losses: list[float]
    weights: list[np.ndarray]
    state: list[np.ndarray]


def _cut(shape: Any, dtype: Any, axis: int = 0) -> list[int]:
    return [_SHARDS.get(shape[0], 1)] + [1] * (len(shape) - 1)


def _of_worker(context: Any, targets: np.ndarray = _TARGETS) -> tf.data.Dataset:
    index = context.input_pipeline_id
    return tf.data.Dataset.from_tensor_slices(
        (tf.gather(_IDS, index), tf.gather(targets, index))
    )


def _of_all(targets: np.ndarray = _TARGETS) -> tf.data.Dataset:
    """Returns batches that have those of all workers behind each other."""
    return tf.data.Dataset.from_tensor_slices(
        (np.concatenate(_IDS, axis=1), np.concatenate(targets, axis=1))
    )


def _model(
    optimizer: Any, hidden: Any = None, *embeddings: dict[str, Any]
) -> keras.Model:
    """Returns a model that looks up the same ids in three tables.

    The tables have different numbers of shards.

    Args:
        optimizer: Optimizer of the model.
        hidden: Options of the hidden layer, if there are any.
        *embeddings: Options of each table, likewise.
    """
    keras.utils.set_random_seed(3)
    ids = keras.Input((3,), dtype="int32")
    rows = [
        keras.layers.Embedding(_ROWS + more, 4, **options)(ids)
        for more, options in enumerate(embeddings or [{}] * 3)
    ]
    flat = keras.layers.Flatten()(keras.layers.Concatenate()(rows))
    flat = keras.layers.Dense(8, activation="tanh", **(hidden or {}))(flat)
    model = keras.Model(ids, keras.layers.Dense(1)(flat))
    # If an optimizer is built inside the step, Keras first resets the initial
    # state of ScheduleFreeAdamW.
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def _trained(model: keras.Model, data: Any, **options: Any) -> _Trained:
    history = model.fit(data, verbose=0, shuffle=False, **options)
    # Convert to arrays while they can be read: connecting to another cluster
    # invalidates earlier variables.
    return _Trained(
        history.history["loss"],
        [v.numpy() for v in model.weights],
        [v.numpy() for v in model.optimizer.variables],
    )


@functools.cache
def _in_one_process(name: str) -> _Trained:
    optimizer = (_CASES | shared_optimizers.WHOLE_MATRIX)[name]()
    return _trained(_model(shared_optimizers.summing(optimizer)), _of_all())


def _on_cluster(
    cluster: tfps.LocalCluster,
    make: Callable[[], keras.Model],
    dataset_fn: Any = _of_worker,
    partitioner: Any = _cut,
    sparse_update: Any = "exact",
    **options: Any,
) -> _Trained:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        partitioner,
        consistency=tfps.Sync(),
        sparse_update=sparse_update,
    )
    try:
        with strategy.scope():
            model = make()
        return _trained(model, tfps.DatasetCreator(dataset_fn), **options)
    finally:
        tfps.ClusterCoordinator(strategy).close()


def _assert_same(
    actual: _Trained, expected: _Trained, tolerance: float = _TOLERANCE
) -> None:
    np.testing.assert_allclose(actual.losses, expected.losses, rtol=1e-5)
    for mine, theirs in zip(
        [*actual.weights, *actual.state],
        [*expected.weights, *expected.state],
        strict=True,
    ):
        scale = np.abs(theirs).max() + 1e-9
        np.testing.assert_allclose(
            mine / scale, theirs / scale, rtol=0, atol=tolerance
        )


@pytest.mark.sample(cases=3)
@pytest.mark.parametrize("name", _CASES)
def test_every_optimizer_and_option_has_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str
) -> None:
    expected = _in_one_process(name)
    actual = _on_cluster(cluster, lambda: _model(_CASES[name]()))
    _assert_same(actual, expected, _TOLERANCES.get(name, _TOLERANCE))


@pytest.mark.parametrize("name", ["Adafactor", "Lamb", "Muon"])
@pytest.mark.sample(cases=1)
def test_optimizers_of_whole_matrices_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str
) -> None:
    make = shared_optimizers.WHOLE_MATRIX[name]
    expected = _in_one_process(name)
    actual = _on_cluster(cluster, lambda: _model(make()), partitioner=None)
    _assert_same(actual, expected)


class SlotsAnywhere(keras.optimizers.SGD):
    """Has slots that do not say to which variable they belong."""

    def build(self, variables: Any) -> None:
        if self.built:
            return
        super().build(variables)
        self._slots = [
            self.add_variable(shape=(8,), name="slot") for _ in variables
        ]

    def update_step(
        self, gradient: Any, variable: Any, learning_rate: Any
    ) -> None:
        slot = self._slots[self._get_variable_index(variable)]
        self.assign_add(slot, keras.ops.ones_like(slot))
        super().update_step(gradient, variable, learning_rate)


def test_slots_on_other_parameter_servers_are_refused(
    cluster: tfps.LocalCluster,
) -> None:
    with pytest.raises(
        tfps.errors.UnsupportedError, match=r"uses variables on.*task:"
    ):
        _on_cluster(
            cluster, lambda: _model(SlotsAnywhere(0.1)), partitioner=None
        )


class _OwnClipping(keras.optimizers.SGD):
    """Clips by a norm that Keras knows nothing of."""

    def _clip_gradients(self, grads: Any) -> Any:
        return [0.5 * tf.convert_to_tensor(each) for each in grads]


def test_clipping_of_an_optimizer_of_ones_own_is_refused(
    cluster: tfps.LocalCluster,
) -> None:
    """It would see the gradients of one parameter server at a time."""
    with pytest.raises(
        tfps.errors.UnsupportedError, match=r"_OwnClipping\._clip_gradients"
    ):
        _on_cluster(cluster, lambda: _model(_OwnClipping(0.1, name="own")))


@pytest.mark.parametrize("num_shards", [1, 2, 3])
@pytest.mark.parametrize("name", ["SGD, plain", "Adagrad"])
@pytest.mark.sample(cases=1)
def test_rows_alone_are_updated_where_untouched_rows_stay(
    cluster: tfps.LocalCluster, name: str, num_shards: int
) -> None:
    """These optimizers have the same numbers with `sparse_update="lazy"`."""
    expected = _in_one_process(name)
    actual = _on_cluster(
        cluster,
        lambda: _model(_CASES[name]()),
        partitioner=tfps.partitioners.FixedShardsPartitioner(num_shards),
        sparse_update="lazy",
    )
    _assert_same(actual, expected)


def _with_overflow(step: int) -> np.ndarray:
    targets = _TARGETS.copy()
    # Only scaled, its gradient is not finite.
    targets[1, step] = 1e38
    return targets


def test_a_step_that_overflows_on_one_worker_is_skipped_by_all(
    cluster: tfps.LocalCluster,
) -> None:
    targets = _with_overflow(7)

    def make() -> Any:
        return _optimizers.LossScaleOptimizer(
            _optimizers.Adam(0.01), initial_scale=64.0, dynamic_growth_steps=10
        )

    expected = _trained(
        _model(shared_optimizers.summing(make())), _of_all(targets)
    )
    actual = _on_cluster(
        cluster,
        lambda: _model(make()),
        lambda context: _of_worker(context, targets),
    )
    assert all(np.isfinite(weights).all() for weights in actual.weights)
    # Also the scale, and the numbers of steps with and without an update.
    _assert_same(actual, expected)


def test_constraints_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster,
) -> None:
    """There is one of each kind, on a table of 1, of 2 and of 3 shards."""
    constraints = [
        keras.constraints.UnitNorm(axis=-1),
        keras.constraints.MaxNorm(0.05, axis=1),
        keras.constraints.NonNeg(),
    ]

    def make(optimizer: Any) -> keras.Model:
        return _model(
            optimizer,
            {"bias_constraint": keras.constraints.NonNeg()},
            *[{"embeddings_constraint": each} for each in constraints],
        )

    expected = _trained(
        make(shared_optimizers.summing(_optimizers.Adam(0.01))), _of_all()
    )
    actual = _on_cluster(cluster, lambda: make(_optimizers.Adam(0.01)))
    _assert_same(actual, expected)


def test_regularizers_count_once(cluster: tfps.LocalCluster) -> None:
    """All workers add them to their loss; the step has their mean."""
    penalty = keras.regularizers.L2(0.05)

    def make(optimizer: Any) -> keras.Model:
        return _model(
            optimizer,
            {"kernel_regularizer": penalty, "activity_regularizer": penalty},
            *[{"embeddings_regularizer": penalty}] * 3,
        )

    expected = _trained(
        make(shared_optimizers.summing(_optimizers.Adam(0.01))), _of_all()
    )
    actual = _on_cluster(cluster, lambda: make(_optimizers.Adam(0.01)))
    _assert_same(actual, expected)


def test_swapping_averages_in_and_out(cluster: tfps.LocalCluster) -> None:
    def adam() -> Any:
        return _optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9)

    def swap() -> list[Any]:
        return [keras.callbacks.SwapEMAWeights()]

    expected = _trained(
        _model(shared_optimizers.summing(adam())), _of_all(), callbacks=swap()
    )
    actual = _on_cluster(cluster, lambda: _model(adam()), callbacks=swap())
    for mine, theirs in zip(actual.weights, expected.weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


_ONE_WEIGHT: dict[str, Callable[[], Any]] = {
    "SGD": lambda: _optimizers.SGD(0.1),
    "Nadam": lambda: _optimizers.Nadam(0.01),
    "clipvalue, accumulation": lambda: _optimizers.Adam(
        0.01, gradient_accumulation_steps=3, clipvalue=0.1
    ),
    "clipnorm": lambda: _optimizers.SGD(0.1, clipnorm=0.1),
    "global_clipnorm": lambda: _optimizers.SGD(0.1, global_clipnorm=0.1),
    "global_clipnorm, accumulation": lambda: _optimizers.SGD(
        0.1, global_clipnorm=0.1, gradient_accumulation_steps=3
    ),
    "LossScaleOptimizer": lambda: _optimizers.LossScaleOptimizer(
        _optimizers.Adam(0.01), initial_scale=64.0, dynamic_growth_steps=10
    ),
    "LossScaleOptimizer, global_clipnorm": lambda: (
        _optimizers.LossScaleOptimizer(
            _optimizers.SGD(0.1, global_clipnorm=0.1),
            initial_scale=64.0,
            dynamic_growth_steps=10,
        )
    ),
}


@pytest.mark.timeout(90)
@pytest.mark.sample(cases=1)
@pytest.mark.parametrize("name", _ONE_WEIGHT)
def test_a_ps_without_any_gradient_keeps_step(
    cluster: tfps.LocalCluster, name: str
) -> None:
    """It may hold scalars of the optimizer, and others wait for its norms."""
    targets = _with_overflow(7) if "LossScale" in name else _TARGETS

    def make() -> keras.Model:
        keras.utils.set_random_seed(3)
        model = keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                keras.layers.Rescaling(1 / _ROWS),
                keras.layers.Dense(1, use_bias=False),
            ]
        )
        model.compile(_ONE_WEIGHT[name](), "mse", metrics=["mae"])
        return model

    expected = _trained(make(), _of_all(targets))
    actual = _on_cluster(
        cluster, make, lambda context: _of_worker(context, targets)
    )
    _assert_same(actual, expected)


def _with_empty(
    context: Any, whose: tuple[int, ...], step: int
) -> tf.data.Dataset:
    """Returns batches of which one may have no example."""
    is_empty = context.input_pipeline_id in whose

    def shortened(number: tf.Tensor, batch: Any) -> Any:
        size = tf.where(tf.equal(number, step) & is_empty, 0, _BATCH)
        return tf.nest.map_structure(lambda part: part[:size], batch)

    return _of_worker(context).enumerate().map(shortened)


@pytest.mark.timeout(90)
def test_a_member_without_examples_counts_nothing(
    cluster: tfps.LocalCluster,
) -> None:
    step = 13

    def batches() -> Any:
        for number in range(_STEPS):
            whose = slice(1) if number == step else slice(_WORKERS)
            yield (
                np.concatenate(_IDS[whose, number]),
                np.concatenate(_TARGETS[whose, number]),
            )

    expected = _trained(
        _model(shared_optimizers.summing(_optimizers.SGD(0.1))),
        tf.data.Dataset.from_generator(
            batches,
            output_signature=(
                tf.TensorSpec([None, 3], tf.int32),
                tf.TensorSpec([None, 1], tf.float32),
            ),
        ).apply(tf.data.experimental.assert_cardinality(_STEPS)),
    )
    actual = _on_cluster(
        cluster,
        lambda: _model(_optimizers.SGD(0.1)),
        lambda context: _with_empty(context, (1,), step),
    )
    # Its loss is not a number: the mean over no examples.
    _assert_same(actual._replace(losses=expected.losses), expected)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("step", [12, 13])
def test_a_step_without_any_example_is_followed_by_others(
    cluster: tfps.LocalCluster, step: int
) -> None:
    """It may be the last one of a span, or not."""
    actual = _on_cluster(
        cluster,
        lambda: _model(_optimizers.SGD(0.1)),
        lambda context: _with_empty(context, (0, 1), step),
        steps_per_epoch=_STEPS,
    )
    assert int(actual.state[0]) == _STEPS
