"""Tests of custom training loops with workers in step.

The reference is a process that trains with the batches of all workers as one.
"""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_optimizers
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_WORKERS = 2
_STEPS = 12
_ROWS = 30
_random = np.random.default_rng(5)
# The second worker has smaller batches.
_SIZES = (16, 12)
_IDS = [
    _random.integers(0, _ROWS, (_STEPS, size, 3)).astype("int32")
    for size in _SIZES
]
_TARGETS = [
    _random.normal(size=(_STEPS, size, 1)).astype("float32") for size in _SIZES
]


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(2),
        consistency=tfps.Sync(),
        sparse_update="exact",
    )
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


def _model(*layers: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(_ROWS, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(8, activation="tanh"),
            *layers,
            keras.layers.Dense(1),
        ]
    )


def _optimizer() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def _train(
    model: keras.Model, optimizer: keras.optimizers.Optimizer
) -> Callable[[Any, Any], Any]:
    """Returns a step of a program that knows nothing of clusters."""

    def step(ids: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.square(model(ids, training=True) - targets)
            )
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    return step


def _batches_of(context: Any) -> tf.data.Dataset:
    """Returns the batches of a worker, whose sizes no trace knows."""
    worker = context.input_pipeline_id
    return (
        tf.data.Dataset.from_tensor_slices((_IDS[worker], _TARGETS[worker]))
        .unbatch()
        .batch(_SIZES[worker])
    )


def _alone(model: keras.Model, num_steps: int = _STEPS) -> list[float]:
    """Trains a model with the batches of all workers; returns the losses."""
    step = _train(model, _optimizer())
    return [
        float(
            step(
                np.concatenate([ids[number] for ids in _IDS]),
                np.concatenate([targets[number] for targets in _TARGETS]),
            )
        )
        for number in range(num_steps)
    ]


def _assert_same(model: keras.Model, alone: keras.Model) -> None:
    for found, expected in zip(
        model.get_weights(), alone.get_weights(), strict=True
    ):
        np.testing.assert_allclose(
            found, expected, rtol=0, atol=1e-5 * np.abs(expected).max()
        )


def _schedule(
    strategy: tfps.ParameterServerStrategy,
    step: Any,
    number: int,
) -> list[Any]:
    """Schedules a step of an iterator; returns the results."""
    coordinator = tfps.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(_batches_of))
    results: list[Any] = []
    _run(coordinator, step, (iterator,), number, results)
    assert coordinator.done()
    return list(coordinator.fetch(results))


def _run(
    coordinator: tfps.ClusterCoordinator,
    function: Any,
    arguments: tuple[Any, ...],
    number: int,
    results: list[Any],
) -> None:
    """Schedules a function some times, and waits for the end of all."""
    for _ in range(number):
        results.append(coordinator.schedule(function, arguments))
    coordinator.join()


@pytest.mark.parametrize("reads", ["outside of run", "inside of run"])
def test_scheduled_steps_have_the_numbers_of_one_process(
    strategy: tfps.ParameterServerStrategy, reads: str
) -> None:
    alone = _model()
    expected = _alone(alone)
    with strategy.scope():
        model = _model()
        optimizer = _optimizer()
    train = _train(model, optimizer)
    num_traces = []

    @tf.function
    def step(iterator: Any) -> Any:
        num_traces.append(1)
        if reads == "inside of run":
            return strategy.run(lambda i: train(*next(i)), args=(iterator,))
        return strategy.run(train, args=next(iterator))

    losses = _schedule(strategy, step, _STEPS)
    assert len(num_traces) == 1
    assert int(optimizer.iterations) == _STEPS
    _assert_same(model, alone)
    # Each worker returns the mean over its own examples.
    np.testing.assert_allclose(
        [np.dot(each.values, _SIZES) / sum(_SIZES) for each in losses],
        expected,
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        strategy.reduce("MEAN", losses[0], axis=None), np.mean(losses[0].values)
    )
    assert len(strategy.experimental_local_results(losses[0])) == _WORKERS


_OPTIONS: dict[str, Callable[[], Any]] = {
    "global_clipnorm": lambda: keras.optimizers.SGD(
        0.1, momentum=0.9, global_clipnorm=0.05
    ),
    "accumulation and averages": lambda: keras.optimizers.Adagrad(
        0.1,
        gradient_accumulation_steps=3,
        use_ema=True,
        ema_momentum=0.9,
        ema_overwrite_frequency=2,
    ),
    "schedule": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.9)
    ),
    # Scaled gradients are near the end of float32's range.
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9),
        initial_scale=2.0**127,
        dynamic_growth_steps=4,
    ),
}


@pytest.mark.parametrize("name", _OPTIONS)
@pytest.mark.sample(cases=2)
def test_options_of_optimizers_have_the_numbers_of_one_process(
    strategy: tfps.ParameterServerStrategy, name: str
) -> None:
    def train(model: keras.Model, optimizer: Any) -> Callable[[Any, Any], Any]:
        def step(ids: Any, targets: Any) -> None:
            with tf.GradientTape() as tape:
                error = model(ids, training=True) - targets
                loss = optimizer.scale_loss(tf.reduce_mean(tf.square(error)))
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)

        return step

    alone = _model()
    optimizer_alone = shared_optimizers.summing(_OPTIONS[name]())
    optimizer_alone.build(alone.trainable_variables)
    step_alone = train(alone, optimizer_alone)
    for number in range(_STEPS):
        step_alone(
            np.concatenate([ids[number] for ids in _IDS]),
            np.concatenate([targets[number] for targets in _TARGETS]),
        )
    with strategy.scope():
        model = _model()
        optimizer = _OPTIONS[name]()
        optimizer.build(model.trainable_variables)
    step_of_worker = train(model, optimizer)

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(step_of_worker, args=next(iterator))

    _schedule(strategy, step, _STEPS)
    _assert_same(model, alone)
    for found, expected in zip(
        optimizer.variables, optimizer_alone.variables, strict=True
    ):
        value = keras.ops.convert_to_numpy(expected)
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(found),
            value,
            rtol=0,
            atol=1e-5 * np.abs(value).max(),
            err_msg=expected.path,
        )


@pytest.mark.parametrize("reads", ["outside of run", "inside of run"])
def test_a_worker_counts_by_the_rows_of_batches_with_sparse_parts(
    strategy: tfps.ParameterServerStrategy, reads: str
) -> None:
    """A part that is sparse has three tensors, whatever its size."""
    inputs = [np.sin(ids.astype("float32")) for ids in _IDS]

    def batches_of(context: Any) -> tf.data.Dataset:
        worker = context.input_pipeline_id
        return (
            tf.data.Dataset.from_tensor_slices(
                (inputs[worker], _TARGETS[worker])
            )
            .unbatch()
            .batch(_SIZES[worker])
            .map(lambda rows, targets: (tf.sparse.from_dense(rows), targets))
        )

    def new_model() -> keras.Model:
        keras.utils.set_random_seed(3)
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])

    alone = new_model()
    step_alone = _train(alone, _optimizer())
    for number in range(_STEPS):
        step_alone(
            np.concatenate([each[number] for each in inputs]),
            np.concatenate([each[number] for each in _TARGETS]),
        )
    with strategy.scope():
        model = new_model()
        optimizer = _optimizer()
    train = _train(model, optimizer)

    def replica(rows: Any, targets: Any) -> Any:
        return train(tf.sparse.to_dense(rows), targets)

    @tf.function
    def step(iterator: Any) -> Any:
        if reads == "inside of run":
            return strategy.run(lambda i: replica(*next(i)), args=(iterator,))
        return strategy.run(replica, args=next(iterator))

    coordinator = tfps.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(batches_of))
    _run(coordinator, step, (iterator,), _STEPS, [])
    _assert_same(model, alone)


@pytest.mark.parametrize("clips", [False, True])
def test_a_step_is_explained_before_it_has_run(
    strategy: tfps.ParameterServerStrategy, *, clips: bool
) -> None:
    with strategy.scope():
        model = _model()
        optimizer = keras.optimizers.SGD(global_clipnorm=1.0 if clips else None)
        optimizer.build(model.trainable_variables)
    train = _train(model, optimizer)

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(train, args=next(iterator))

    coordinator = tfps.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(_batches_of))
    before = strategy.explain(step, (iterator.type_spec,), print_fn=None)
    _run(coordinator, step, (iterator,), 1, [])
    after = strategy.explain(step, (iterator.type_spec,), print_fn=None)
    assert before == after
    of_workers, of_chief = (
        sum(body.num_parcels for body in before.bodies if body.runs_on == job)
        for job in ("worker", "chief")
    )
    assert of_workers
    # Of each of two ps: its part, the total, and that it has arrived.
    assert of_chief == (6 if clips else 0)
    assert int(optimizer.iterations) == 1


def test_states_are_assigned_once_a_step(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        norm = keras.layers.BatchNormalization(momentum=0.5)
        model = _model(norm)
        optimizer = _optimizer()
    train = _train(model, optimizer)
    before = [np.array(v) for v in norm.non_trainable_variables]
    inner = keras.Sequential(model.layers[:-2])
    outputs = [inner(ids[0]).numpy() for ids in _IDS]

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(train, args=next(iterator))

    _schedule(strategy, step, 1)
    sizes = np.array(_SIZES) / sum(_SIZES)
    moments: list[Any] = [np.mean, np.var]
    for number, moment in enumerate(moments):
        mean = sum(
            size * moment(output, axis=0)
            for size, output in zip(sizes, outputs, strict=True)
        )
        np.testing.assert_allclose(
            norm.non_trainable_variables[number],
            0.5 * before[number] + 0.5 * mean,
            rtol=1e-4,
            atol=1e-6,
        )


def test_synchronized_statistics_have_the_numbers_of_one_process(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    """Also their gradients, though the workers' batches differ in size."""

    def make() -> keras.Model:
        keras.utils.set_random_seed(3)
        return keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                keras.layers.Embedding(_ROWS, 4),
                keras.layers.Flatten(),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.BatchNormalization(
                    synchronized=True, momentum=0.5
                ),
                keras.layers.Dense(1),
            ]
        )

    alone = make()
    _alone(alone)
    with strategy.scope():
        model = make()
        optimizer = _optimizer()
    train = _train(model, optimizer)

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(train, args=next(iterator))

    _schedule(strategy, step, _STEPS)
    _assert_same(model, alone)


def test_a_function_without_gradients_runs_on_one_worker(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        model = _model()
        count = tf.Variable(0.0, trainable=False)
        metric = keras.metrics.Sum()

    def evaluate(ids: Any, targets: Any) -> Any:
        count.assign_add(1.0)
        error = tf.reduce_sum(tf.abs(model(ids) - targets)) + 0.0 * count
        metric.update_state(error)
        return error

    @tf.function
    def step(ids: Any, targets: Any) -> Any:
        error = strategy.run(evaluate, args=(ids, targets))
        return strategy.reduce("SUM", error, axis=None)

    ids, targets = _IDS[0][0], _TARGETS[0][0]
    results: list[Any] = []
    _run(coordinator, step, (ids, targets), 5, results)
    error = np.abs(model(ids).numpy() - targets).sum()
    np.testing.assert_allclose(coordinator.fetch(results), [error] * 5, 1e-5)
    assert count.numpy() == 5.0
    np.testing.assert_allclose(metric.result(), 5 * error, 1e-5)


def test_steps_end_when_the_input_of_all_has_ended(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        model = _model()
        optimizer = _optimizer()
    train = _train(model, optimizer)

    def some(context: Any) -> tf.data.Dataset:
        # The second worker has half of the batches.
        return _batches_of(context).take(
            _STEPS // (1 + context.input_pipeline_id)
        )

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(train, args=next(iterator))

    iterator = iter(coordinator.create_per_worker_dataset(some))
    results: list[Any] = []
    with pytest.raises(tf.errors.OutOfRangeError):
        _run(coordinator, step, (iterator,), 2 * _STEPS, results)
    assert int(optimizer.iterations) == _STEPS
    made = [each for each in results if each.error is None]
    assert [len(each.fetch().values) for each in made] == (
        [2] * (_STEPS // 2) + [1] * (_STEPS // 2)
    )
    for each in results[_STEPS:]:
        with pytest.raises(errors.ClosureCancelledError):
            each.fetch()
    # As one process that gets the batches of those that have some.
    alone = _model()
    alone_step = _train(alone, _optimizer())
    for number in range(_STEPS):
        workers = range(2 if number < _STEPS // 2 else 1)
        alone_step(
            np.concatenate([_IDS[worker][number] for worker in workers]),
            np.concatenate([_TARGETS[worker][number] for worker in workers]),
        )
    _assert_same(model, alone)


def test_an_error_cancels_what_waits_and_the_loop_goes_on_after(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        model = _model()
        optimizer = _optimizer()
    train = _train(model, optimizer)

    def checked(ids: Any, targets: Any) -> Any:
        check = tf.debugging.assert_less(tf.reduce_max(targets), 100.0, "bad")
        with tf.control_dependencies([check]):
            return train(ids, tf.identity(targets))

    def dataset_fn(context: Any) -> tf.data.Dataset:
        worker = context.input_pipeline_id

        def spoil(number: Any, batch: Any) -> Any:
            is_bad = (number == 3) & (worker == 1)
            return batch[0], tf.where(is_bad, 1000.0, batch[1])

        return _batches_of(context).repeat().enumerate().map(spoil)

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(checked, args=next(iterator))

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    results: list[Any] = []
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
        _run(coordinator, step, (iterator,), 3 * _STEPS, results)
    coordinator.join()
    assert coordinator.done()
    # The worker that has failed leaves its step to the other one, or the
    # error ends that one too.
    made = int(optimizer.iterations)
    assert 3 <= made <= 4
    assert isinstance(results[-1].error, errors.ClosureCancelledError)
    # Iterators go on.
    _run(coordinator, step, (iterator,), _STEPS, results)
    assert int(optimizer.iterations) == made + _STEPS


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("outside of run", "in a function that strategy.run"),
        ("in a loop", "outside of loops"),
        ("in a callable", "in a function that strategy.run"),
        ("twice", "at most one synchronous step"),
        ("reduced", "do not see each other's results"),
        ("no batch", "the number of them has to be seen"),
        ("reduced in a loop", "Received: all_reduce"),
        ("unknown shape", "known shapes"),
        ("gathered", "all_gather"),
        ("on one worker", "All workers make a synchronous step"),
        ("traced before", "traced by the program"),
    ],
)
def test_what_cannot_be_right_is_refused(
    strategy: tfps.ParameterServerStrategy, case: str, message: str
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        model = _model()
        optimizer = _optimizer()
        optimizer.build(model.trainable_variables)
    before = [w.copy() for w in model.get_weights()]
    train = _train(model, optimizer)

    def one() -> Any:
        return train(_IDS[0][0], _TARGETS[0][0])

    def body(ids: Any, targets: Any) -> Any:
        if case in ("outside of run", "traced before"):
            return train(ids, targets)
        if case == "no batch":
            return strategy.run(one)
        if case == "in a loop":
            for _ in tf.range(3):
                strategy.run(train, args=(ids, targets))
            return tf.constant(0.0)

        def replica(ids: Any, targets: Any) -> Any:
            context = tf.distribute.get_replica_context()
            if case == "reduced in a loop":
                for _ in tf.range(2):
                    context.all_reduce("SUM", tf.ones([]))
            if case == "unknown shape":
                context.all_reduce("SUM", tf.boolean_mask(ids, ids > 0))
            if case == "gathered":
                context.all_gather(ids, 0)
            return train(ids, targets)

        loss = strategy.run(replica, args=(ids, targets))
        if case == "twice":
            loss = strategy.run(train, args=(ids, targets))
        if case == "reduced":
            loss = strategy.reduce("SUM", loss, axis=None)
        return loss

    function: Any = body if case == "in a callable" else tf.function(body)
    arguments = tuple(map(tf.constant, (_IDS[0][0], _TARGETS[0][0])))
    if case == "traced before":
        function = function.get_concrete_function(*arguments)

    def schedule() -> None:
        if case == "on one worker":
            coordinator.schedule_on(0, function, arguments)
        _run(coordinator, function, arguments, 1, [])

    with pytest.raises(errors.UnsupportedError, match=message):
        schedule()
    for found, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert int(optimizer.iterations) == 0


def test_states_that_pass_to_the_next_batch_are_refused(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        layer = keras.layers.GRU(2, stateful=True)
        model = keras.Sequential(
            [
                keras.Input(batch_shape=(4, 3), dtype="int32"),
                keras.layers.Embedding(_ROWS, 2),
                layer,
                keras.layers.Dense(1),
            ]
        )
        optimizer = _optimizer()
        optimizer.build(model.trainable_variables)
    before = [w.copy() for w in model.get_weights()]
    train = _train(model, optimizer)

    @tf.function
    def step(ids: Any, targets: Any) -> Any:
        return strategy.run(train, args=(ids, targets))

    arguments = (tf.zeros([4, 3], tf.int32), tf.zeros([4, 1]))
    with pytest.raises(
        errors.UnsupportedError, match=r"'rnn_state', computed by '.*gru"
    ):
        coordinator.schedule(step, arguments)
    for found, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(layer.states[0].numpy(), np.zeros((4, 2)))
    assert int(optimizer.iterations) == 0
