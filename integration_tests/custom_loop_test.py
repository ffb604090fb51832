"""Tests of custom training loops: operations of steps, and their counts."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_NUM_STEPS = 60
_BATCH_SIZE = 8
_NUM_CLASSES = 3


@pytest.fixture(scope="module")
def strategy(
    cluster: tfps.LocalCluster,
) -> tfps.ParameterServerStrategy:
    return tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.MinSizePartitioner(256 << 10, max_shards=2),
    )


@pytest.fixture(scope="module")
def coordinator(
    strategy: tfps.ParameterServerStrategy,
) -> Iterator[tfps.ClusterCoordinator]:
    made = tfps.ClusterCoordinator(strategy)
    yield made
    made.close()


def _numbers(dtype: str, *shape: int) -> np.ndarray:
    """Returns zeros and ones, or multiples of 1/256: sums are exact."""
    random = np.random.default_rng(0)
    if dtype == "int64":
        return random.integers(0, 2, shape)
    return random.integers(0, 257, shape).astype("float32") / 256


_LABELS = _numbers("int64", _NUM_STEPS, _BATCH_SIZE, 1)
_PREDICTIONS = _numbers("float32", _NUM_STEPS, _BATCH_SIZE, 1)
_CLASSES = _numbers("float32", _NUM_STEPS, _BATCH_SIZE, _NUM_CLASSES)


def _update(metric: keras.metrics.Metric, number: Any) -> None:
    """Updates a metric by one batch."""
    labels = tf.gather(_LABELS, number)
    if isinstance(metric, keras.metrics.SparseCategoricalAccuracy):
        metric.update_state(labels, tf.gather(_CLASSES, number))
    elif isinstance(metric, keras.metrics.Sum):
        metric.update_state(tf.gather(_PREDICTIONS, number))
    elif isinstance(metric, keras.metrics.MeanIoU):
        metric.update_state(labels, tf.gather(_PREDICTIONS, number) > 0.5)
    else:
        # Some metrics build their variables here, from the input shapes.
        metric.update_state(
            tf.cast(labels, tf.float32), tf.gather(_PREDICTIONS, number)
        )


@pytest.mark.parametrize(
    "make",
    [
        keras.metrics.Sum,
        keras.metrics.SparseCategoricalAccuracy,
        keras.metrics.BinaryAccuracy,
        functools.partial(keras.metrics.AUC, num_thresholds=20),
        keras.metrics.Precision,
        keras.metrics.F1Score,
        functools.partial(keras.metrics.MeanIoU, num_classes=2),
        keras.metrics.MeanSquaredError,
        keras.metrics.R2Score,
    ],
    ids=lambda make: getattr(make, "func", make).__name__,
)
@pytest.mark.sample(cases=4)
def test_metrics_count_every_batch_once(
    coordinator: tfps.ClusterCoordinator, make: Any
) -> None:
    with coordinator.strategy.scope():
        metric = make()
    num_traces = []

    @tf.function
    def step(number: tf.Tensor) -> None:
        num_traces.append(1)
        coordinator.strategy.run(_update, args=(metric, number))

    alone = make()
    for number in range(_NUM_STEPS):
        _update(alone, number)
    for _ in range(2):
        metric.reset_state()
        for number in range(_NUM_STEPS):
            coordinator.schedule(step, args=(tf.constant(number),))
        coordinator.join()
        for mine, its in zip(metric.variables, alone.variables, strict=True):
            # Sums of squares need more digits than float32 has.
            np.testing.assert_allclose(mine.numpy(), its.numpy(), rtol=1e-6)
        np.testing.assert_allclose(
            np.asarray(metric.result()), np.asarray(alone.result()), rtol=1e-5
        )
    assert len(num_traces) == 1


def test_metrics_of_eager_closures_are_exact(
    coordinator: tfps.ClusterCoordinator,
) -> None:
    """A Python callable reads and assigns the metric's variables eagerly."""
    with coordinator.strategy.scope():
        metric = keras.metrics.Accuracy()
    for _ in range(20):
        coordinator.schedule(metric.update_state, args=([1, 2, 3], [1, 2, 0]))
    coordinator.join()
    assert metric.total.numpy() == 40.0
    assert metric.count.numpy() == 60.0


def test_one_trace_serves_all_workers(
    coordinator: tfps.ClusterCoordinator,
) -> None:
    step_traces = []
    dataset_traces = []

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset_traces.append(context.input_pipeline_id)
        return tf.data.Dataset.range(100).repeat().batch(4)

    @tf.function
    def step(iterator: Any) -> tf.Tensor:
        step_traces.append(1)
        return tf.reduce_sum(next(iterator))

    dataset = coordinator.create_per_worker_dataset(dataset_fn)
    for _ in range(2):
        iterator = iter(dataset)
        for _ in range(30):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
    assert len(step_traces) == 1
    assert dataset_traces == [0, 1]


def test_a_step_is_one_replica(coordinator: tfps.ClusterCoordinator) -> None:
    strategy = coordinator.strategy

    def replica_fn(scale: float) -> tuple[tf.Tensor, tf.Tensor]:
        context = tf.distribute.get_replica_context()
        values = tf.constant([1.0, 2.0, 3.0]) * scale
        return values, context.all_reduce("SUM", values)

    @tf.function
    def step() -> list[tf.Tensor]:
        values, reduced = strategy.run(replica_fn, kwargs={"scale": 2.0})
        return [
            reduced,
            strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None),
            strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=0),
            strategy.reduce(tf.distribute.ReduceOp.MEAN, values, axis=0),
            strategy.gather(values, axis=0),
            *strategy.experimental_local_results(values),
        ]

    expected = [2.0, 4.0, 6.0]
    for result, wanted in zip(
        coordinator.schedule(step).fetch(),
        [expected, expected, 12.0, 4.0, expected, expected],
        strict=True,
    ):
        np.testing.assert_array_equal(result, wanted)


def _table_and_optimizer(
    coordinator: tfps.ClusterCoordinator, initial: str
) -> tuple[keras.layers.Embedding, keras.optimizers.SGD]:
    """Returns a table in two shards, and SGD with a learning rate of one."""
    with coordinator.strategy.scope():
        table = keras.layers.Embedding(8, 16384, embeddings_initializer=initial)
        table.build(None)
        return table, keras.optimizers.SGD(1.0)


def test_a_sharded_table_is_trained_row_by_row(
    coordinator: tfps.ClusterCoordinator,
) -> None:
    table, optimizer = _table_and_optimizer(coordinator, "ones")
    (weight,) = table.weights
    assert [shard.device for shard in weight.value.variables] == list(
        coordinator.strategy.ps_devices
    )

    @tf.function
    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(table(ids))
        gradients = tape.gradient(loss, [weight])
        optimizer.apply_gradients(zip(gradients, [weight], strict=True))
        return loss

    for _ in range(10):
        coordinator.schedule(step, args=(tf.constant([1, 6, 1]),))
    coordinator.join()
    assert optimizer.iterations.numpy() == 10
    # No addition of concurrent steps is lost.
    np.testing.assert_array_equal(
        weight.numpy()[:, 0], [1, -19, 1, 1, 1, 1, -9, 1]
    )


def test_what_a_program_adds_is_kept_beside_an_optimizers_updates(
    coordinator: tfps.ClusterCoordinator,
) -> None:
    table, optimizer = _table_and_optimizer(coordinator, "zeros")
    (weight,) = table.weights
    ids = tf.range(8)

    @tf.function
    def train() -> None:
        for _ in tf.range(_NUM_STEPS):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(table(ids))
            gradients = tape.gradient(loss, [weight])
            optimizer.apply_gradients(zip(gradients, [weight], strict=True))

    @tf.function
    def add() -> None:
        for _ in tf.range(_NUM_STEPS):
            weight.assign_add(2 * tf.ones(weight.shape))
            weight.value.scatter_sub(
                tf.IndexedSlices(tf.ones(weight.shape), ids)
            )

    for _ in range(5):
        coordinator.schedule(train)
        coordinator.schedule(add)
    coordinator.join()
    # One kind of step subtracts one, the other adds one.
    np.testing.assert_array_equal(weight.numpy()[:, 0], np.zeros(8))


@pytest.mark.parametrize(
    "options",
    [
        {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3},
        {"gradient_accumulation_steps": 3},
    ],
    ids=["averages", "accumulation"],
)
def test_an_optimizer_is_applied_outside_of_functions(
    strategy: tfps.ParameterServerStrategy, options: dict[str, Any]
) -> None:
    def train(scope: Any) -> tuple[list[Any], int]:
        with scope:
            # One variable in two shards, and one whole.
            variables = [
                keras.Variable(np.ones((2, 70_000), "float32")),
                keras.Variable([[3.0, 4.0]]),
            ]
            optimizer = keras.optimizers.SGD(1.0, **options)
            for step in range(4):
                gradients = [
                    tf.fill(variable.shape, step + 1.0)
                    for variable in variables
                ]
                optimizer.apply(gradients, variables)
        return [v.numpy() for v in variables], int(optimizer.iterations)

    values, steps = train(strategy.scope())
    truth, true_steps = train(contextlib.nullcontext())
    assert steps == true_steps
    for value, right in zip(values, truth, strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-6)


def test_a_table_is_a_variable_to_a_scheduled_function(
    strategy: tfps.ParameterServerStrategy,
    coordinator: tfps.ClusterCoordinator,
) -> None:
    value = np.zeros((6, 70_000), "float32")
    with strategy.scope():
        table = tf.Variable(value, name="table")
        counter = tf.Variable([0, 0], dtype=tf.int64)
    assert len(table.variables) == 2
    plain = tf.Variable(value)
    rows = tf.IndexedSlices(tf.fill([2, 70_000], 3.0), tf.constant([4, 1]))

    @tf.function
    def change(given: dict[str, Any]) -> tf.Tensor:
        (variable,) = given["tables"]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variable)
            loss = 2.0 * tf.reduce_sum(tf.gather(variable, [1, 5]))
        variable.scatter_max(rows)
        variable[2:4, :3].assign(tf.ones([2, 3]))
        variable.scatter_nd_add([[0, 1], [5, 2]], [7.0, 8.0])
        return tf.reduce_sum(
            tf.convert_to_tensor(tape.gradient(loss, variable))
        )

    right = change({"tables": [plain]})
    got = coordinator.schedule(change, ({"tables": [table]},)).fetch()
    assert got == right.numpy() == 4 * 70_000
    np.testing.assert_array_equal(table.numpy(), plain.numpy())
    np.testing.assert_array_equal(table[4], plain[4])
    assert bool(tf.reduce_all(table == plain))
    with pytest.raises(tf.errors.InvalidArgumentError, match="of bounds"):
        table[6]
    counter.scatter_nd_add([[1]], tf.constant([5], tf.int64))
    assert counter.numpy().tolist() == [0, 5]
    assert tf.Variable(counter).numpy().tolist() == [0, 5]


def test_each_worker_has_a_variable_of_its_own(
    strategy: tfps.ParameterServerStrategy,
    coordinator: tfps.ClusterCoordinator,
) -> None:
    with strategy.scope():
        own = tf.Variable(10.0, per_worker_variable=True)

    @tf.function
    def count() -> tf.Tensor:
        return own.assign_add(1.0)

    for _ in range(20):
        coordinator.schedule(count)
    coordinator.join()
    values = [float(value) for value in own.read_all()]
    assert len(values) == 2
    assert sum(values) == 2 * 10.0 + 20
    assert own.numpy() == 10.0


def test_a_dataset_from_outside_is_sent_along(
    coordinator: tfps.ClusterCoordinator,
) -> None:
    outside = tf.data.Dataset.range(1, 10)
    unsendable = iter(outside)

    @tf.function
    def read_all(iterator: Any) -> tf.Tensor:
        total = tf.constant(0, tf.int64)
        for _ in range(9):
            total += next(iterator)
        return total

    @tf.function
    def read_outside() -> tf.Tensor:
        return outside.reduce(tf.constant(0, tf.int64), lambda a, b: a + b)

    dataset = coordinator.create_per_worker_dataset(lambda: outside.shuffle(9))
    results = [
        coordinator.schedule(read_all, (iter(dataset),)),
        coordinator.schedule(read_outside),
    ]
    assert coordinator.fetch(results) == [45, 45]
    with pytest.raises(tfps.errors.InputError, match="iterator of the chief"):
        coordinator.schedule(tf.function(lambda: next(unsendable)))
    with pytest.raises(tfps.errors.InputError, match="create_per_worker"):
        coordinator.schedule(read_all, (unsendable,))


def test_a_function_returns_a_dataset_from_outside(
    coordinator: tfps.ClusterCoordinator,
) -> None:
    dataset = tf.data.Dataset.range(5, 8)
    per_worker = coordinator.create_per_worker_dataset(lambda: dataset)
    iterator = iter(per_worker)
    step = tf.function(lambda numbers: next(numbers))
    read = [coordinator.schedule_on(1, step, (iterator,)) for _ in range(3)]
    assert sorted(value.fetch() for value in read) == [5, 6, 7]


def test_functions_run_eagerly_on_the_worker(
    strategy: tfps.ParameterServerStrategy,
    coordinator: tfps.ClusterCoordinator,
) -> None:
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0])
    seen = []

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        y = variable * x
        seen.append((tf.executing_eagerly(), y.device, y.numpy().tolist()))
        variable.assign_add(y)
        return y

    tf.config.run_functions_eagerly(True)
    try:
        result = coordinator.schedule(step, (tf.constant(2.0),)).fetch()
    finally:
        tf.config.run_functions_eagerly(False)
    ((is_eager, device, value),) = seen
    assert is_eager
    assert "/job:worker/" in device
    assert value == result.tolist() == [2.0, 4.0]
    assert variable.numpy().tolist() == [3.0, 6.0]
