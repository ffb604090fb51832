"""Tests of `all_reduce` in synchronous steps, and of where it is refused.

The reference is a process that has the batches of all workers as one.
"""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_WORKERS = 2
_STEPS = 8
# The second worker has smaller batches.
_SIZES = (16, 12)
_random = np.random.default_rng(5)
# Of each worker: steps, examples, features.
_X = [_random.normal(size=(_STEPS, n, 3)).astype("float32") for n in _SIZES]
_Y = [_random.normal(size=(_STEPS, n, 1)).astype("float32") for n in _SIZES]


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, consistency=tfps.Sync()
    )
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


def _batches_of(context: Any) -> tf.data.Dataset:
    """Returns the batches of a worker, whose sizes no trace knows."""
    worker = context.input_pipeline_id
    return (
        tf.data.Dataset.from_tensor_slices((_X[worker], _Y[worker]))
        .unbatch()
        .batch(_SIZES[worker])
    )


def _schedule(
    strategy: tfps.ParameterServerStrategy,
    replica: Callable[[tf.Tensor, tf.Tensor], Any],
    number: int = 1,
) -> list[Any]:
    """Runs what replicas make of a batch some times; returns the results."""
    coordinator = tfps.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(_batches_of))

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(replica, args=next(iterator))

    results = [
        coordinator.schedule(step, args=(iterator,)) for _ in range(number)
    ]
    coordinator.join()
    return list(coordinator.fetch(results))


def _context() -> Any:
    return tf.distribute.get_replica_context()


def _optimizer() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def _weight(
    strategy: tfps.ParameterServerStrategy,
) -> tuple[tf.Variable, keras.optimizers.Optimizer]:
    with strategy.scope():
        weight = tf.Variable([[1.0], [2.0], [-1.0]])
        optimizer = _optimizer()
        optimizer.build([weight])
    return weight, optimizer


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize(
    ("total", "mean"),
    [
        ("sum", "mean"),
        ("SUM", "MEAN"),
        (tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN),
    ],
)
def test_all_workers_get_sums_and_means_of_all(
    strategy: tfps.ParameterServerStrategy,
    total: Any,
    mean: Any,
    is_before: bool,
) -> None:
    """In nested structures, before gradients are applied and after."""
    weight, optimizer = _weight(strategy)

    def apply() -> None:
        optimizer.apply([tf.zeros_like(weight)], [weight])

    def replica(x: tf.Tensor, y: tf.Tensor) -> Any:
        if not is_before:
            apply()
        first = tf.ensure_shape(x[0], [3])
        values = {
            "size": tf.shape(x)[0],
            "others": [first, (tf.reduce_sum(y), 1)],
        }
        sums = _context().all_reduce(total, values)
        means = _context().all_reduce(mean, (first, []))
        if is_before:
            apply()
        return sums, means, _context().num_replicas_in_sync

    ((sums, (mean_row, nothing), number),) = _schedule(strategy, replica)
    first = [x[0, 0] for x in _X]
    row, (targets, num_workers) = sums["others"]
    assert nothing == []
    assert num_workers.values == (_WORKERS,) * _WORKERS
    # As documented: losses are not to be divided by it.
    assert number.values == (1,) * _WORKERS
    assert sums["size"].values == (sum(_SIZES),) * _WORKERS
    for found, expected in (
        (row, np.sum(first, axis=0)),
        (targets, sum(y[0].sum() for y in _Y)),
        (mean_row, np.mean(first, axis=0)),
    ):
        for value in found.values:
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


def test_gradients_through_sums_are_those_of_one_process(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    """Though the batches of workers have different sizes."""

    def train(
        weight: Any, optimizer: Any, total: Callable[[Any], Any]
    ) -> Callable[[Any, Any], Any]:
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                outputs = tf.matmul(x, weight)
                squares, number = total(
                    (
                        tf.reduce_sum(tf.square(outputs)),
                        tf.cast(tf.shape(x)[0], tf.float32),
                    )
                )
                scale = tf.sqrt(squares / number)
                loss = tf.reduce_mean(tf.square(outputs / scale - y))
            optimizer.apply(tape.gradient(loss, [weight]), [weight])
            return loss

        return step

    weight, optimizer = _weight(strategy)
    start = weight.numpy()
    losses = _schedule(
        strategy,
        train(
            weight, optimizer, lambda each: _context().all_reduce("sum", each)
        ),
        _STEPS,
    )
    alone = tf.Variable(start)
    own = _optimizer()
    own.build([alone])
    step = train(alone, own, lambda each: each)
    expected = [
        float(
            step(
                np.concatenate([x[number] for x in _X]),
                np.concatenate([y[number] for y in _Y]),
            )
        )
        for number in range(_STEPS)
    ]
    np.testing.assert_allclose(weight.numpy(), alone.numpy(), atol=1e-5)
    np.testing.assert_allclose(
        [np.dot(each.values, _SIZES) / sum(_SIZES) for each in losses],
        expected,
        rtol=1e-5,
    )


def _layers() -> list[keras.layers.Layer]:
    return [
        keras.layers.Dense(4, "tanh"),
        keras.layers.BatchNormalization(synchronized=True, momentum=0.5),
        keras.layers.Dense(1),
    ]


def _normalizing() -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), *_layers()])
    model.compile(_optimizer(), "mse", metrics=["mae"])
    return model


def _train_alone(model: keras.Model) -> None:
    """Trains a model with the batches of all workers."""
    for number in range(_STEPS):
        model.train_on_batch(
            np.concatenate([x[number] for x in _X]),
            np.concatenate([y[number] for y in _Y]),
        )


def _assert_same(found: keras.Model, expected: keras.Model) -> None:
    for ours, theirs in zip(
        found.get_weights(), expected.get_weights(), strict=True
    ):
        np.testing.assert_allclose(
            ours, theirs, rtol=0, atol=1e-5 * max(1, np.abs(theirs).max())
        )


@pytest.mark.parametrize("num_layers", [1, 2])
def test_each_layer_that_is_synchronized_takes_two_exchanges(
    strategy: tfps.ParameterServerStrategy, num_layers: int
) -> None:
    """One is for its statistics, and one for their gradients."""

    def num_messages(*, synchronized: bool) -> int:
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,))])
            for _ in range(num_layers):
                model.add(keras.layers.Dense(4, activation="tanh"))
                model.add(
                    keras.layers.BatchNormalization(synchronized=synchronized)
                )
            model.add(keras.layers.Dense(1))
            model.compile("sgd", "mse")
        model.fit(
            tfps.DatasetCreator(_batches_of), steps_per_epoch=2, verbose=0
        )
        sent = [
            each
            for body in strategy.explain(model, print_fn=None).bodies
            if body.runs_on == "worker"
            for each in body.sent
        ]
        # Of each wave and ps.
        assert {each.num_parcels for each in sent} == {1}
        return len(sent)

    more = num_messages(synchronized=True) - num_messages(synchronized=False)
    assert more == 2 * 2 * num_layers


def test_evaluation_of_normalizing_layers_has_the_numbers_of_one_process(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    """Inference needs no sums over workers."""
    alone = _normalizing()
    _train_alone(alone)
    with strategy.scope():
        model = _normalizing()
    model.fit(
        tfps.DatasetCreator(_batches_of), steps_per_epoch=_STEPS, verbose=0
    )
    _assert_same(model, alone)
    x, y = np.concatenate(_X[0]), np.concatenate(_Y[0])
    np.testing.assert_allclose(
        model.evaluate(x, y, batch_size=20, verbose=0),
        alone.evaluate(x, y, batch_size=20, verbose=0),
        rtol=1e-4,
    )
    expected = alone.predict(x, verbose=0)
    np.testing.assert_allclose(
        model.predict(x, verbose=0), expected, rtol=1e-4, atol=1e-5
    )
    metric: Any
    with strategy.scope():
        metric = keras.metrics.MeanAbsoluteError()

    def evaluate(x: tf.Tensor, y: tf.Tensor) -> Any:
        outputs = model(x)
        metric.update_state(y, outputs)
        return outputs

    coordinator = tfps.ClusterCoordinator(strategy)
    outputs = coordinator.schedule(
        tf.function(lambda x, y: strategy.run(evaluate, args=(x, y))),
        args=(tf.constant(x), tf.constant(y)),
    )
    np.testing.assert_allclose(outputs.fetch(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        metric.result(), np.abs(expected - y).mean(), rtol=1e-4
    )


class OwnSteps(keras.Model):
    """Has steps of its own; the first one makes the variables of layers."""

    def __init__(self, reduces: str | None = None) -> None:
        super().__init__()
        keras.utils.set_random_seed(3)
        self._reduces = reduces
        self.own = _layers()

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        for layer in self.own:
            x = (
                layer(x, training=training)
                if isinstance(layer, keras.layers.BatchNormalization)
                else layer(x)
            )
        return x

    def train_step(self, data: Any) -> Any:
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}

    def test_step(self, data: Any) -> Any:
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        is_training = self._reduces == "normalization"
        loss = tf.reduce_mean(tf.square(self(x, training=is_training) - y))
        if self._reduces == "loss":
            loss = _context().all_reduce("sum", loss)
        return {"loss": loss}

    def predict_step(self, data: Any) -> Any:
        return _context().all_gather(self(data), axis=0)


def test_a_model_may_be_built_by_its_first_step(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        model = OwnSteps()
        model.compile(_optimizer())
    model.fit(
        tfps.DatasetCreator(_batches_of), steps_per_epoch=_STEPS, verbose=0
    )
    alone = OwnSteps()
    alone.compile(_optimizer())
    _train_alone(alone)
    _assert_same(model, alone)


@pytest.mark.parametrize("reduces", ["loss", "normalization"])
def test_a_reduction_in_evaluation_is_refused(
    strategy: tfps.ParameterServerStrategy, reduces: str
) -> None:
    """Each batch is evaluated by one worker, without the others."""
    with strategy.scope():
        model = OwnSteps(reduces)
        model.compile(_optimizer())
    x, y = _X[0][0], _Y[0][0]
    with pytest.raises(errors.UnsupportedError, match=r"all_reduce\(\) else"):
        model.evaluate(x, y, verbose=0)
    with pytest.raises(errors.UnsupportedError, match=r"all_gather\(\) else"):
        model.predict(x, verbose=0)


# The program itself may trace it for the chief.
@pytest.mark.filterwarnings("ignore:strategy.run.. was called")
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("all_reduce", r"Received: all_reduce\(\) elsewhere"),
        ("all_gather", r"Received: all_gather\(\) elsewhere"),
        ("assigns", r"Received: all_reduce\(\) elsewhere"),
        ("in a loop", r"Received: all_reduce\(\) elsewhere"),
        ("normalization", r"Received: all_reduce\(\) elsewhere"),
        ("beside a step", r"Received: all_reduce\(\) elsewhere"),
        ("traced before", "reduces values over workers, and was traced"),
        ("in a callable", r"Received: all_reduce\(\) elsewhere"),
    ],
)
def test_a_reduction_without_a_step_is_refused(
    strategy: tfps.ParameterServerStrategy, case: str, message: str
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    weight, optimizer = _weight(strategy)
    before = weight.numpy()
    with strategy.scope():
        norm = keras.layers.BatchNormalization(synchronized=True)
        norm.build((None, 3))

    def replica(x: tf.Tensor) -> Any:
        if case == "normalization":
            return norm(x, training=True)
        if case == "all_gather":
            return _context().all_gather(x, 0)
        if case == "assigns":
            weight.assign_add(tf.ones_like(weight))
        if case == "in a loop":
            total = tf.zeros([])
            for _ in tf.range(2):
                total += _context().all_reduce("sum", 1.0)
            return total
        return _context().all_reduce("sum", tf.reduce_sum(x))

    def body(x: tf.Tensor) -> Any:
        if case == "beside a step":
            strategy.run(
                lambda x: optimizer.apply([tf.ones_like(weight)], [weight]),
                args=(x,),
            )
        return strategy.run(replica, args=(x,))

    x = tf.constant(_X[0][0])
    function: Any = body if case == "in a callable" else tf.function(body)
    if case == "traced before":
        function = function.get_concrete_function(x)

    def schedule() -> None:
        coordinator.schedule(function, args=(x,))
        coordinator.join()

    with pytest.raises(errors.UnsupportedError, match=message):
        schedule()
    np.testing.assert_array_equal(weight.numpy(), before)


def test_the_chief_has_the_whole_batch(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    """There, a value is its own sum."""
    alone = _normalizing()
    with strategy.scope():
        model = _normalizing()
    for number in range(2):
        batch = _X[0][number], _Y[0][number]
        model.train_on_batch(*batch)
        alone.train_on_batch(*batch)
    _assert_same(model, alone)
