"""Tests of workers with two replicas, in custom loops and in `fit`.

`parity_replicas_test` compares their numbers with those of one process.
"""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_devices
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2, logical_cpus=2)

_X = np.arange(1.0, 15.0, dtype="float32").reshape(7, 2)


@pytest.fixture
def make_strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[Callable[..., tfps.ParameterServerStrategy]]:
    """Yields a function that makes a strategy, which ends with the test."""
    made = []

    def make(**options: Any) -> tfps.ParameterServerStrategy:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
            **options,
        )
        made.append(strategy)
        return strategy

    yield make
    for strategy in made:
        tfps.ClusterCoordinator(strategy).close()


@pytest.fixture
def strategy(make_strategy: Any) -> tfps.ParameterServerStrategy:
    """Returns a strategy with two replicas a worker."""
    return make_strategy()


def _batches() -> tf.data.Dataset:
    """Returns batches of 4 and 3 rows."""
    return tf.data.Dataset.from_tensor_slices(_X).batch(4)


def _scheduled(
    strategy: tfps.ParameterServerStrategy, step: Any, dataset_fn: Any = None
) -> list[Any]:
    """Returns the results of a step on each batch, in their order."""
    coordinator = tfps.ClusterCoordinator(strategy)
    iterator = iter(
        coordinator.create_per_worker_dataset(dataset_fn or _batches)
    )
    results = []
    for _ in range(2):
        results.append(coordinator.schedule(step, args=(iterator,)).fetch())
    coordinator.join()
    return results


def test_each_logical_cpu_is_a_replica(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    assert strategy.replica_devices == ("/device:CPU:0", "/device:CPU:1")
    assert strategy.num_replicas_in_sync == 2
    sizes = []

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        # The replicas of a worker share its batch.
        sizes.append(context.get_per_replica_batch_size(8))
        return _batches()

    tfps.ClusterCoordinator(strategy).create_per_worker_dataset(
        lambda: strategy.distribute_datasets_from_function(dataset_fn)
    )
    assert sizes == [8]


def test_the_number_of_replicas_can_be_chosen(make_strategy: Any) -> None:
    assert make_strategy(replicas_per_worker=1).num_replicas_in_sync == 1
    with pytest.raises(
        tfps.errors.ClusterConfigurationError,
        match=r"worker 0 has 2: CPU:0, CPU:1, with replicas_per_worker=3",
    ):
        make_strategy(replicas_per_worker=3)
    with pytest.raises(ValueError, match="replicas_per_worker=0"):
        make_strategy(replicas_per_worker=0)


@pytest.mark.parametrize("how", ["distributed", "from function", "plain"])
def test_a_custom_loop_splits_what_it_reads(
    strategy: tfps.ParameterServerStrategy, how: str
) -> None:
    dataset_fn = {
        "distributed": lambda: strategy.experimental_distribute_dataset(
            _batches()
        ),
        "from function": lambda: strategy.distribute_datasets_from_function(
            lambda _: _batches()
        ),
        "plain": _batches,
    }[how]

    @tf.function
    def step(iterator: Any) -> Any:
        def replica_fn(rows: tf.Tensor) -> Any:
            context = tf.distribute.get_replica_context()
            return (
                rows,
                tf.reduce_sum(rows),
                context.replica_id_in_sync_group,
                context.num_replicas_in_sync,
                context.all_reduce("sum", tf.reduce_sum(rows, 0)),
            )

        rows, sums, index, number, total = strategy.run(
            replica_fn, args=(next(iterator),)
        )
        return {
            "rows": strategy.gather(rows, 0),
            "local": strategy.experimental_local_results(sums),
            "sum": strategy.reduce("SUM", sums, axis=None),
            "mean": strategy.reduce("MEAN", rows, axis=0),
            "sums": sums,
            "index": index,
            "number": number,
            "total": total,
        }

    first, last = _scheduled(strategy, step, dataset_fn)
    for result, rows in ((first, _X[:4]), (last, _X[4:])):
        np.testing.assert_array_equal(result["rows"], rows)
        halves = [rows[:2].sum(), rows[2:].sum()]
        np.testing.assert_allclose(result["local"], halves)
        np.testing.assert_allclose(result["sums"].values, halves)
        assert result["sum"] == pytest.approx(rows.sum())
        np.testing.assert_allclose(result["mean"], rows.mean(0), rtol=1e-6)
        assert list(result["index"].values) == [0, 1]
        # In a replica, a loss is the mean over its own examples.
        assert result["number"] == 1
        for total in result["total"].values:
            np.testing.assert_allclose(total, rows.sum(0))


@pytest.mark.parametrize("is_of_tensorflow", [False, True])
def test_a_custom_loop_applies_the_mean_gradient(
    strategy: tfps.ParameterServerStrategy, *, is_of_tensorflow: bool
) -> None:
    with strategy.scope():
        weight = keras.Variable(np.zeros([4, 1], "float32"))
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build([weight])

    @tf.function
    def step(iterator: Any) -> Any:
        def replica_fn(rows: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                rows = tf.concat([rows, rows * rows], 1)
                error = rows @ tf.convert_to_tensor(weight) - 1.0
                losses = tf.square(error[:, 0])
                loss = (
                    tf.nn.compute_average_loss(losses, global_batch_size=4)
                    if is_of_tensorflow
                    else tf.reduce_mean(losses)
                )
            optimizer.apply([tape.gradient(loss, weight.value)], [weight])
            return loss

        losses = strategy.run(replica_fn, args=(next(iterator),))
        how = "SUM" if is_of_tensorflow else "MEAN"
        return strategy.reduce(how, losses, axis=None)

    losses = _scheduled(strategy, step)
    expected = np.zeros([4, 1])
    for number, rows in enumerate((_X[:4], _X[4:])):
        wide = np.concatenate([rows, rows * rows], 1)
        error = wide @ expected - 1.0
        if number == 0:
            assert losses[0] == pytest.approx((error**2).mean(), rel=1e-5)
        expected -= 0.01 * 2.0 * wide.T @ error / len(rows)
    np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-4)
    assert optimizer.iterations.numpy() == 2


def test_a_step_may_run_in_a_loop(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        weight = keras.Variable(np.zeros([2, 1], "float32"))
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([weight])

    def replica_fn(rows: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(rows @ tf.convert_to_tensor(weight))
        optimizer.apply([tape.gradient(loss, weight.value)], [weight])

    @tf.function
    def steps(iterator: Any) -> Any:
        for _ in tf.range(2):
            strategy.run(replica_fn, args=(next(iterator),))

    coordinator = tfps.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(_batches))
    coordinator.schedule(steps, args=(iterator,))
    coordinator.join()
    expected = -0.1 * (_X[:4].mean(0) + _X[4:].mean(0))
    np.testing.assert_allclose(weight.numpy()[:, 0], expected, rtol=1e-6)


def test_merge_call_sees_the_values_of_all_replicas(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    @tf.function
    def step(iterator: Any) -> Any:
        def merged(distribution: Any, sums: Any) -> Any:
            return distribution.extended.reduce_to("SUM", sums, "")

        def replica_fn(rows: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            return context.merge_call(merged, args=(tf.reduce_sum(rows),))

        return strategy.run(replica_fn, args=(next(iterator),))

    first, _ = _scheduled(strategy, step)
    assert list(first.values) == [_X[:4].sum()] * 2


def test_a_value_may_be_given_to_each_replica(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    @tf.function
    def step(iterator: Any) -> Any:
        del iterator
        values = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant([10 * context.replica_id_in_sync_group])
        )
        return strategy.run(lambda value: value + 1, args=(values,))

    first, _ = _scheduled(strategy, step)
    assert [value.tolist() for value in first.values] == [[1], [11]]


def test_values_of_replicas_need_no_batch_and_weigh_none(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        total = keras.metrics.Sum()

    def values() -> Any:
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(context.replica_id_in_sync_group)
        )

    @tf.function
    def step(iterator: Any) -> Any:
        # A batch beside them is split all the same.
        strategy.run(
            lambda _, rows: total.update_state(rows),
            args=(values(), next(iterator)),
        )
        return strategy.run(lambda value: value + 1, args=(values(),))

    first, _ = _scheduled(strategy, step)
    assert list(first.values) == [1, 2]
    assert float(total.result()) == _X.sum()


def test_losses_outside_of_run_are_those_of_the_batch(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    loss = keras.losses.MeanSquaredError()

    @tf.function
    def step(iterator: Any) -> Any:
        rows = next(iterator)
        return loss(tf.zeros_like(rows), rows)

    first, _ = _scheduled(strategy, step)
    np.testing.assert_allclose(first, (_X[:4] ** 2).mean(), rtol=1e-6)


def test_a_batch_that_is_no_argument_is_refused(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    @tf.function
    def step(iterator: Any) -> Any:
        rows = next(iterator)
        return strategy.run(lambda: tf.reduce_sum(rows))

    with pytest.raises(
        tfps.errors.UnsupportedError, match="tensor of the whole batch"
    ):
        _scheduled(strategy, step)


def test_elements_may_be_tuples_of_one(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    @tf.function
    def step(iterator: Any) -> Any:
        (rows,) = next(iterator)
        return strategy.gather(strategy.run(tf.identity, args=(rows,)), 0)

    first, _ = _scheduled(
        strategy,
        step,
        lambda: strategy.experimental_distribute_dataset(
            _batches().map(lambda rows: (rows,))
        ),
    )
    np.testing.assert_array_equal(first, _X[:4])


def test_what_may_be_a_batch_is_refused(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(lambda rows: rows, args=(2.0 * next(iterator),))

    with pytest.raises(tfps.errors.InputError, match="may be a batch"):
        _scheduled(strategy, step)


def test_replicas_drop_different_units(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        dropout = keras.layers.Dropout(0.5)

    @tf.function
    def step(iterator: Any) -> Any:
        del iterator
        values = strategy.experimental_distribute_values_from_function(
            lambda _: tf.ones([1, 64])
        )
        return strategy.run(
            lambda value: dropout(value, training=True), args=(values,)
        )

    first, last = _scheduled(strategy, step)
    masks = {tuple(v[0].tolist()) for r in (first, last) for v in r.values}
    assert len(masks) == 4


class LossOfBatch(keras.Model):
    """Returns the loss of a batch, and counts how often it was traced."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = keras.layers.Embedding(11, 3)
        self.dense = keras.layers.Dense(1)

    def call(self, ids: Any) -> Any:
        return self.dense(tf.reduce_mean(self.embedding(ids), 1))

    def train_step(self, data: Any) -> Any:
        ids, target = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(ids) - target))
        self.optimizer.apply(
            tape.gradient(loss, self.trainable_variables),
            self.trainable_variables,
        )
        return {"loss": loss}


def _ids_and_targets(number: int) -> tf.data.Dataset:
    random = np.random.default_rng(8)
    return tf.data.Dataset.from_tensor_slices(
        (
            random.integers(0, 11, (number, 2)),
            random.normal(size=(number, 1)).astype("float32"),
        )
    )


def test_a_step_of_the_model_may_return_the_loss_of_its_batch(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    def trained(model: keras.Model) -> float:
        model.compile(keras.optimizers.SGD(0.0))
        data = _ids_and_targets(5).batch(5)
        return float(model.fit(data, verbose=0).history["loss"][0])

    keras.utils.set_random_seed(1)
    expected = trained(LossOfBatch())
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = LossOfBatch()
    assert trained(model) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("is_read_by_workers", [False, True])
def test_fit_takes_datasets_that_are_distributed(
    strategy: tfps.ParameterServerStrategy, *, is_read_by_workers: bool
) -> None:
    data = _ids_and_targets(6).batch(3)
    with strategy.scope():
        model = LossOfBatch()
    model.compile(keras.optimizers.SGD(0.0))
    expected = model.fit(data, verbose=0).history["loss"]
    given: Any = strategy.experimental_distribute_dataset(data)
    if is_read_by_workers:
        given = tfps.DatasetCreator(
            lambda _: strategy.experimental_distribute_dataset(data)
        )
    np.testing.assert_allclose(
        model.fit(given, verbose=0).history["loss"], expected, rtol=1e-6
    )


def test_replicas_send_no_more_than_one_would(make_strategy: Any) -> None:
    """Rows are looked up once, weights read once, gradients added up."""
    sent = []
    for replicas in (1, 2):
        strategy = make_strategy(replicas_per_worker=replicas)
        with strategy.scope():
            model = LossOfBatch()
            model.compile("adam")
        model.fit(_ids_and_targets(16).batch(8), verbose=0)
        (body,) = strategy.explain(model, print_fn=None).bodies
        sent.append(
            [
                (each.source, each.destination, each.wave, each.num_parcels)
                for each in body.sent
            ]
            + [sum(e.num_bytes for e in body.sent)]
            + [sum(e.num_unsized for e in body.sent)]
        )
    assert sent[1] == sent[0]


def _index_of_replica() -> int:
    context = tf.distribute.get_replica_context()
    if context is None:  # while the model is built
        return 0
    return int(tf.get_static_value(context.replica_id_in_sync_group))


class Diverging(keras.Model):
    """Looks rows up in one replica only."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = keras.layers.Embedding(11, 3)
        self.dense = keras.layers.Dense(1)

    def call(self, ids: Any) -> Any:
        rows = self.embedding(ids)
        if _index_of_replica() == 1:
            rows = self.embedding(ids)
        return self.dense(tf.reduce_mean(rows, 1))


def test_replicas_that_take_different_ways_are_refused(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        model = Diverging()
        model.compile("sgd", "mse")
    with pytest.raises(
        tfps.errors.UnsupportedError,
        match=r"Python code depend on the index of the replica",
    ):
        model.fit(_ids_and_targets(4).batch(4), verbose=0)


class KeepsTensors(LossOfBatch):
    """Adds losses, and keeps a tensor, before and after lookups."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(3, activity_regularizer="l2")

    def call(self, ids: Any) -> Any:
        rows = self.embedding(ids)
        hidden = self.hidden(rows)
        self.kept = tf.reduce_mean(hidden, [1, 2])
        self.add_loss(tf.reduce_mean(rows**2))
        again = self.embedding(ids + 0)
        output = self.dense(tf.reduce_mean(again + hidden, 1))
        return output + self.kept[:, tf.newaxis]

    train_step = keras.Model.train_step


class TwoOutputs(LossOfBatch):
    """Has a loss for each of two outputs, and a metric of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.other = keras.layers.Dense(1)

    def call(self, ids: Any) -> Any:
        rows = tf.reduce_mean(self.embedding(ids), 1)
        return {"a": self.dense(rows), "b": self.other(rows)}

    train_step = keras.Model.train_step


def _compiled(model: keras.Model) -> keras.Model:
    loss = {"a": "mse", "b": "mae"} if isinstance(model, TwoOutputs) else "mse"
    model.compile(keras.optimizers.SGD(0.05), loss)
    return model


@pytest.mark.parametrize("cls", [KeepsTensors, TwoOutputs])
def test_what_layers_and_metrics_keep_is_that_of_a_replica(
    strategy: tfps.ParameterServerStrategy, cls: type
) -> None:
    """Of batches of 8, 8 and 1."""
    data = _ids_and_targets(17).batch(8)
    if cls is TwoOutputs:
        data = data.map(lambda ids, y: (ids, {"a": y, "b": 2.0 * y}))
    keras.utils.set_random_seed(1)
    expected = _compiled(cls())
    losses = expected.fit(data, epochs=2, verbose=0, shuffle=False).history
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = _compiled(cls())
    history = model.fit(data, epochs=2, verbose=0, shuffle=False).history
    assert history.keys() == losses.keys()
    for name, values in losses.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-4)
    for mine, theirs in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_allclose(
            mine.numpy(), theirs.numpy(), rtol=1e-3, atol=1e-5
        )


class Shares(LossOfBatch):
    """Hands a tensor on by a list that replicas share."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = _Shared()

    def call(self, ids: Any) -> Any:
        self.shared.append(tf.reduce_mean(tf.cast(ids, tf.float32)))
        rows = tf.reduce_mean(self.embedding(ids), 1)
        return self.dense(rows) + self.shared[-1]


class _Shared:
    """List that Keras does not track."""

    def __init__(self) -> None:
        self._items: list[Any] = []

    def append(self, item: Any) -> None:
        self._items.append(item)

    def __getitem__(self, index: int) -> Any:
        return self._items[index]


class DecoratedStep(LossOfBatch):
    """Has a train_step that is a function of TensorFlow's."""

    @tf.function
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


class Counting(LossOfBatch):
    """Returns a number that is no mean."""

    def train_step(self, data: Any) -> Any:
        return {**super().train_step(data), "rows": tf.shape(data[0])[0]}


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Shares, "used a tensor of another"),
        (DecoratedStep, "remove @tf.function"),
        (Counting, "returns a value of its batch"),
    ],
)
def test_what_replicas_cannot_do_together_is_refused(
    strategy: tfps.ParameterServerStrategy, cls: type, message: str
) -> None:
    with strategy.scope():
        model = cls()
        model.compile("sgd")
    with pytest.raises(tfps.errors.UnsupportedError, match=message):
        model.fit(_ids_and_targets(4).batch(4), verbose=0)


def test_cached_rows_are_refused(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    table = tfps.layers.TableConfig("items", 10, 4)
    item = tfps.layers.FeatureConfig("item", table, (None,), (None, 4))
    with strategy.scope():
        model = keras.Sequential(
            [
                tfps.layers.DistributedEmbedding(item, cache_rows=5),
                keras.layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")
    with pytest.raises(tfps.errors.UnsupportedError, match="replicas"):
        model.fit(np.zeros(8, "int32"), np.zeros((8, 1)), verbose=0)


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight"])
def test_losses_that_are_no_means_are_refused(
    strategy: tfps.ParameterServerStrategy, reduction: str
) -> None:
    with strategy.scope():
        model = KeepsTensors()
        model.compile("sgd", keras.losses.MeanSquaredError(reduction))
    with pytest.raises(tfps.errors.UnsupportedError, match=reduction):
        model.fit(_ids_and_targets(4).batch(4), verbose=0)


class Conditional(LossOfBatch):
    """Applies gradients inside of a condition."""

    def train_step(self, data: Any) -> Any:
        step = super().train_step
        return tf.cond(
            tf.reduce_all(tf.shape(data[0]) > 0),
            lambda: step(data),
            lambda: {"loss": tf.zeros([])},
        )


def test_updates_in_a_condition_are_refused(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        model = Conditional()
        model.compile("sgd")
    with pytest.raises(
        tfps.errors.UnsupportedError, match=r"optimizer.apply\(\) of .* inside"
    ):
        model.fit(_ids_and_targets(4).batch(4), verbose=0)


class Failing(LossOfBatch):
    """Raises an error of its own in one replica."""

    def call(self, ids: Any) -> Any:
        if _index_of_replica() == 1:
            raise ValueError("my own error")
        return super().call(ids)


def test_an_error_of_the_program_is_raised_as_it_is(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        model = Failing()
        model.compile("sgd")
    with pytest.raises(ValueError, match="my own error"):
        model.fit(_ids_and_targets(4).batch(4), verbose=0)
    assert strategy.num_replicas_in_sync == 2


def test_texts_ragged_and_sparse_parts_are_split(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    """And strings are looked up on the CPU, in each replica."""
    words = ["a", "b", "c", "d", "e"]
    ragged = tf.ragged.constant([[1], [2, 3], [], [4, 5, 6], [7]])
    sparse = tf.sparse.from_dense(np.diag(np.arange(1.0, 6.0)))
    data = tf.data.Dataset.from_tensor_slices(
        (
            {"word": words, "ragged": ragged, "sparse": sparse},
            np.ones([5, 1], "float32"),
        )
    ).batch(5)

    def make() -> keras.Model:
        keras.utils.set_random_seed(2)
        word = keras.Input([], dtype="string", name="word")
        lookup = keras.layers.StringLookup(vocabulary=words)
        rows = keras.layers.Embedding(6, 2)(lookup(word))
        numbers = keras.Input([5], sparse=True, name="sparse")
        wide = keras.layers.Dense(2)(numbers)
        out = keras.layers.Dense(1)(keras.layers.Add()([rows, wide]))
        model = keras.Model({"word": word, "sparse": numbers}, out)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    def without_ragged(x: Any, y: Any) -> Any:
        lengths = tf.cast(x["ragged"].row_lengths(), tf.float32)
        return {"word": x["word"], "sparse": x["sparse"]}, y * lengths[:, None]

    expected = make()
    expected.fit(data.map(without_ragged), epochs=2, verbose=0)
    with strategy.scope():
        model = make()
    model.fit(data.map(without_ragged), epochs=2, verbose=0)
    for mine, theirs in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_allclose(
            mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-6
        )


def test_mixed_precision_holds_in_every_replica(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((2,), dtype="int32"),
                    keras.layers.Embedding(11, 4),
                    keras.layers.Flatten(),
                    keras.layers.Dense(1, dtype="float32"),
                ]
            )
            model.compile("adam", "mse")
        seen = []
        call = model.layers[1].call

        def noting(x: Any) -> Any:
            seen.append(x.dtype)
            return call(x)

        model.layers[1].call = noting
        history = model.fit(
            _ids_and_targets(16).batch(8), epochs=4, verbose=0
        ).history["loss"]
    finally:
        keras.config.set_dtype_policy("float32")
    assert {*seen} == {tf.float16}
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert history[-1] < history[0]


@pytest.mark.parametrize("replicas", [1, 2])
def test_ids_strings_and_checks_are_on_the_cpu(
    make_strategy: Any, replicas: int
) -> None:
    """CPU:1 stands for an accelerator; `gpu_test` has GPUs."""
    shared_devices.require_ids_on_cpu(
        make_strategy(replicas_per_worker=replicas), ["/device:CPU:1"]
    )
