"""Tests of fit() with workers in step: inputs, metrics, states and counts.

The reference is a process that trains with the batches of all workers as one.
"""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_streams
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = [
    pytest.mark.cluster(num_workers=2, num_ps=2),
    pytest.mark.sample(cases=8, group="sync_fit"),
]

_ROWS = 40
_random = np.random.default_rng(7)
_EXAMPLES = 20 * 32
_IDS = _random.integers(0, _ROWS, (_EXAMPLES, 3)).astype("int32")
_TARGETS = _random.integers(0, 2, (_EXAMPLES, 1)).astype("float32")
_WEIGHTS = _random.integers(1, 4, (_EXAMPLES, 1)).astype("float32")
# Number of batches, and examples in each, of the two workers.
_UNEVEN = ((20, 16), (13, 13))


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


def _model(**options: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(_ROWS, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    return _compiled(model, **options)


def _compiled(model: keras.Model, **options: Any) -> keras.Model:
    model.compile(
        # Its slots are zero where no gradient was: there is no difference
        # between a repeated id and its sum.
        keras.optimizers.SGD(0.2, momentum=0.9),
        "binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
        **options,
    )
    return model


def _assert_same(
    ours: keras.Model, mine: Any, alone: Any, weights: list[np.ndarray]
) -> None:
    """Checks the weights, and the history with all its metrics."""
    assert mine.history.keys() == alone.history.keys()
    for name, values in alone.history.items():
        np.testing.assert_allclose(
            mine.history[name], values, rtol=1e-5, err_msg=name
        )
    for weight, expected in zip(ours.get_weights(), weights, strict=True):
        np.testing.assert_allclose(
            weight,
            expected,
            rtol=0,
            atol=1e-5 * max(np.abs(expected).max(), 0.01),
        )


def _bounds(worker: int) -> list[tuple[int, int]]:
    """Returns the examples of each batch of a worker with uneven input."""
    number, size = _UNEVEN[worker]
    first = worker * _UNEVEN[0][0] * _UNEVEN[0][1]
    return [(first + n * size, first + (n + 1) * size) for n in range(number)]


def _uneven_of_worker(context: Any) -> tf.data.Dataset:
    bounds = _bounds(context.input_pipeline_id)
    examples = slice(bounds[0][0], bounds[-1][1])
    return tf.data.Dataset.from_tensor_slices(
        (_IDS[examples], _TARGETS[examples])
    ).batch(bounds[0][1] - bounds[0][0])


def _uneven_of_all() -> tf.data.Dataset:
    """Returns batches of those who have one; others have left."""

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for step in range(max(number for number, _ in _UNEVEN)):
            mine = [
                slice(*_bounds(worker)[step])
                for worker, (number, _) in enumerate(_UNEVEN)
                if step < number
            ]
            yield (
                np.concatenate([_IDS[each] for each in mine]),
                np.concatenate([_TARGETS[each] for each in mine]),
            )

    return tf.data.Dataset.from_generator(
        batches,
        output_signature=(
            tf.TensorSpec([None, 3], tf.int32),
            tf.TensorSpec([None, 1], tf.float32),
        ),
    ).apply(tf.data.experimental.assert_cardinality(20))


def test_uneven_input_counts_by_examples_of_those_who_take_part(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    alone = _model()
    expected = alone.fit(_uneven_of_all(), epochs=2, verbose=0)
    weights = alone.get_weights()
    with strategy.scope():
        ours = _model()
    actual = ours.fit(
        tfps.DatasetCreator(_uneven_of_worker), epochs=2, verbose=0
    )
    _assert_same(ours, actual, expected, weights)
    # An epoch is the longest input.
    assert int(ours.optimizer.iterations) == 2 * 20


def test_workers_make_a_fourth_of_a_short_epoch_in_one_call(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    """They share no steps, so that more calls would only take more time."""
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        model = _model()
    # Three steps are few enough until the time of a step is known.
    model.fit(
        tfps.DatasetCreator(_uneven_of_worker), steps_per_epoch=12, verbose=0
    )
    assert coordinator.counters.value("closures_done") == 4 * 2


def test_a_step_sends_no_more_messages_than_an_asynchronous_one(
    cluster: tfps.LocalCluster,
) -> None:
    """Clipping by a norm takes the help of the chief, not of workers."""

    def sent(
        consistency: Any, optimizer: Any
    ) -> tuple[dict[Any, int], list[Any]]:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
            consistency=consistency,
            sparse_update="exact",
        )
        with strategy.scope():
            model = _model()
            model.compile(optimizer, "binary_crossentropy")
        model.fit(
            tfps.DatasetCreator(_uneven_of_worker),
            steps_per_epoch=2,
            verbose=0,
        )
        bodies = strategy.explain(model, print_fn=None).bodies
        tfps.ClusterCoordinator(strategy).close()
        by_workers = {
            (body.name, each.wave, each.source, each.destination): (
                each.num_parcels
            )
            for body in bodies
            if body.runs_on == "worker"
            for each in body.sent
        }
        return by_workers, [
            (each.source, each.destination, each.num_parcels)
            for body in bodies
            if body.runs_on == "chief"
            for each in body.sent
        ]

    asynchronous, of_chief = sent(tfps.Async(), keras.optimizers.Adam())
    assert not of_chief
    ps = [f"/job:ps/replica:0/task:{index}" for index in range(2)]
    # Parts come, the total goes, and it has arrived.
    relayed = [
        *((each, "", 1) for each in ps),
        *(("", each, 1) for each in ps),
        *((each, "", 1) for each in ps),
    ]
    adam = keras.optimizers.Adam
    for optimizer, expected in (
        (adam(), []),
        (adam(global_clipnorm=0.1), relayed),
        (keras.optimizers.LossScaleOptimizer(adam()), []),
    ):
        synchronous, of_chief = sent(tfps.Sync(), optimizer)
        assert of_chief == expected
        assert {*synchronous.values()} == {1}
        # There and back and there, of two ps: ids, rows, gradients.
        assert len(synchronous) == 3 * 2
        assert synchronous.items() <= asynchronous.items()


class _Counts(keras.callbacks.Callback):
    """Records numbers that depend on the number of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.num_batches = 0
        self.last_batches: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del logs
        self.num_batches += 1
        self._last = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        del epoch, logs
        self.last_batches.append(self._last)


@pytest.mark.parametrize("steps_per_execution", [1, 6])
def test_arrays_are_cut_for_the_workers(
    strategy: tfps.ParameterServerStrategy, steps_per_execution: int
) -> None:
    """The last batch has one example, fewer than there are workers."""
    examples = slice(0, 32 * 9 + 1)
    of_validation = slice(32 * 9 + 1, None)

    def fit(model: keras.Model) -> tuple[Any, _Counts]:
        counts = _Counts()
        history = model.fit(
            _IDS[examples],
            _TARGETS[examples],
            batch_size=32,
            epochs=2,
            shuffle=False,
            validation_data=(_IDS[of_validation], _TARGETS[of_validation]),
            callbacks=[counts],
            verbose=0,
        )
        return history, counts

    alone = _model(steps_per_execution=steps_per_execution)
    expected, of_alone = fit(alone)
    weights = alone.get_weights()
    with strategy.scope():
        ours = _model(steps_per_execution=steps_per_execution)
    actual, of_ours = fit(ours)
    _assert_same(ours, actual, expected, weights)
    assert int(ours.optimizer.iterations) == 2 * 10
    assert of_ours.num_batches == of_alone.num_batches
    assert of_ours.last_batches == of_alone.last_batches


@pytest.mark.parametrize(
    "options",
    [{"sample_weight": _WEIGHTS}, {"class_weight": {0: 0.5, 1: 3.0}}],
    ids=["of examples", "of classes"],
)
def test_weights_in_losses_and_metrics_have_the_numbers_of_one_process(
    strategy: tfps.ParameterServerStrategy, options: dict[str, Any]
) -> None:
    def fit(model: keras.Model) -> Any:
        return model.fit(
            _IDS,
            _TARGETS,
            batch_size=32,
            shuffle=False,
            verbose=0,
            **options,
        )

    alone = _model(weighted_metrics=["mae"])
    expected = fit(alone)
    weights = alone.get_weights()
    with strategy.scope():
        ours = _model(weighted_metrics=["mae"])
    _assert_same(ours, fit(ours), expected, weights)


def _of_parts() -> tf.data.Dataset:
    lengths = np.random.default_rng(2).integers(0, 4, _EXAMPLES)
    ragged = tf.RaggedTensor.from_row_lengths(
        np.concatenate([i[:n] for i, n in zip(_IDS, lengths, strict=True)]),
        lengths,
    )
    counts = np.zeros((_EXAMPLES, _ROWS), "float32")
    np.add.at(counts, (np.arange(_EXAMPLES), _IDS[:, 0]), 1.0)
    features = {"ragged": ragged, "sparse": tf.sparse.from_dense(counts)}
    dataset = tf.data.Dataset.from_tensor_slices((features, _TARGETS))
    # The last batch is smaller.
    return dataset.take(32 * 6 + 5).batch(32)


def test_ragged_and_sparse_features_are_cut_for_the_workers(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    def make() -> keras.Model:
        keras.utils.set_random_seed(3)
        inputs = {
            "ragged": keras.Input(
                (None,), dtype="int32", name="ragged", ragged=True
            ),
            "sparse": keras.Input((_ROWS,), name="sparse", sparse=True),
        }
        rows = keras.layers.Embedding(_ROWS, 4)(inputs["ragged"])
        pieces = [
            keras.ops.sum(rows, axis=1),
            keras.layers.Dense(4)(inputs["sparse"]),
        ]
        outputs = keras.layers.Dense(1, activation="sigmoid")(
            keras.layers.Concatenate()(pieces)
        )
        return _compiled(keras.Model(inputs, outputs))

    alone = make()
    expected = alone.fit(_of_parts(), verbose=0)
    weights = alone.get_weights()
    with strategy.scope():
        ours = make()
    actual = ours.fit(_of_parts(), verbose=0)
    _assert_same(ours, actual, expected, weights)


def test_statistics_of_batch_normalization_are_the_mean_over_members(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    """Each member normalizes its own share; once a step, all have their say."""
    steps, momentum = 5, 0.7
    values = _random.normal(2.0, 3.0, (steps, 2, 8, 3)).astype("float32")
    with strategy.scope():
        normalization = keras.layers.BatchNormalization(momentum=momentum)
        model = keras.Sequential(
            [keras.Input((3,)), normalization, keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
    # Cut by the chief: the first half of a batch is that of worker 0.
    model.fit(
        values.reshape(-1, 3),
        np.zeros((steps * 16, 1), "float32"),
        batch_size=16,
        shuffle=False,
        verbose=0,
    )
    mean, variance = np.zeros(3), np.ones(3)
    for members in values:
        means = members.mean(axis=1).mean(axis=0)
        variances = members.var(axis=1).mean(axis=0)
        mean = momentum * mean + (1 - momentum) * means
        variance = momentum * variance + (1 - momentum) * variances
    np.testing.assert_allclose(
        normalization.moving_mean.numpy(), mean, rtol=1e-5
    )
    np.testing.assert_allclose(
        normalization.moving_variance.numpy(), variance, rtol=1e-5
    )


def test_a_seeded_dropout_differs_between_members(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dropout(0.5, seed=3),
                keras.layers.Dense(
                    1, use_bias=False, kernel_initializer="zeros"
                ),
            ]
        )
        model.compile(keras.optimizers.SGD(1.0), _minus_mean)
    # An example for each member. Each adds 0 or 1 to every weight.
    model.fit(
        np.ones((2, 64), "float32"),
        np.zeros((2, 1), "float32"),
        batch_size=2,
        verbose=0,
    )
    (kernel,) = model.get_weights()
    assert {*kernel.ravel().tolist()} == {0.0, 1.0, 2.0}


def _minus_mean(y_true: Any, y_pred: Any) -> Any:
    del y_true
    return -keras.ops.mean(y_pred, axis=-1)


def test_replicas_in_sync_are_the_workers(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    assert strategy.num_replicas_in_sync == 2
    seen: list[int] = []

    def of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        size = context.get_per_replica_batch_size(32)
        seen.append(size)
        dataset = tf.data.Dataset.from_tensor_slices((_IDS, _TARGETS))
        return dataset.shard(
            context.num_input_pipelines, context.input_pipeline_id
        ).batch(size)

    with strategy.scope():
        model = _model()
    model.fit(tfps.DatasetCreator(of_worker), verbose=0)
    assert {*seen} == {16}
    assert int(model.optimizer.iterations) == 20


def test_a_batch_on_the_chief_has_the_numbers_of_one_process(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    """`train_on_batch` runs on the chief alone: there is nobody to divide by.

    It does so before and after steps of all workers.
    """

    def train(model: keras.Model) -> list[Any]:
        first = model.train_on_batch(_IDS[:32], _TARGETS[:32])
        model.fit(
            _IDS[32:96],
            _TARGETS[32:96],
            batch_size=32,
            shuffle=False,
            verbose=0,
        )
        return [first, model.train_on_batch(_IDS[96:128], _TARGETS[96:128])]

    alone = _model()
    expected = train(alone)
    weights = alone.get_weights()
    with strategy.scope():
        ours = _model()
    np.testing.assert_allclose(train(ours), expected, rtol=1e-5)
    for weight, theirs in zip(ours.get_weights(), weights, strict=True):
        np.testing.assert_allclose(weight, theirs, rtol=0, atol=1e-5)
    assert int(ours.optimizer.iterations) == 4


class _WarmUp(keras.callbacks.Callback):
    """Sets another learning rate before each batch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.02 * (batch + 1)


def test_a_learning_rate_of_each_batch_holds_on_every_ps_at_once(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    def train(model: keras.Model) -> Any:
        return model.fit(
            _IDS[:320],
            _TARGETS[:320],
            batch_size=32,
            shuffle=False,
            callbacks=[_WarmUp()],
            verbose=0,
        )

    alone = _model()
    expected = train(alone)
    weights = alone.get_weights()
    with strategy.scope():
        ours = _model()
    _assert_same(ours, train(ours), expected, weights)


def test_fits_of_several_kinds_of_batches_take_turns(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    def train(model: keras.Model) -> Any:
        history = None
        for weights in (None, _WEIGHTS[:64], None):
            history = model.fit(
                _IDS[:64],
                _TARGETS[:64],
                batch_size=32,
                sample_weight=weights,
                shuffle=False,
                verbose=0,
            )
        return history

    alone = _model()
    expected = train(alone)
    weights = alone.get_weights()
    with strategy.scope():
        ours = _model()
    _assert_same(ours, train(ours), expected, weights)


class _Counting(keras.layers.Layer):
    """Counts the examples that it has seen."""

    def __init__(self, aggregation: str) -> None:
        super().__init__()
        self.count = self.add_weight(
            shape=(),
            dtype="int64",
            initializer="zeros",
            trainable=False,
            aggregation=aggregation,
        )

    def call(self, inputs: Any) -> Any:
        """Returns the inputs."""
        self.count.assign_add(tf.shape(inputs, tf.int64)[0])
        return inputs


def _of_counting(aggregation: str) -> tuple[keras.Model, _Counting]:
    counting = _Counting(aggregation)
    model = keras.Sequential(
        [keras.Input((3,)), counting, keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model, counting


def test_a_sum_over_workers_is_exact(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        model, counting = _of_counting("sum")
    values = _IDS[: 32 * 4 + 7].astype("float32")
    model.fit(values, _TARGETS[: len(values)], batch_size=32, verbose=0)
    assert int(counting.count) == len(values)


def test_a_change_that_may_be_a_sum_or_a_mean_is_refused(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        model, counting = _of_counting("none")
    with pytest.raises(
        tfps.errors.UnsupportedError, match=r"assign_add.*aggregation"
    ):
        model.fit(_IDS.astype("float32"), _TARGETS, verbose=0)
    assert int(counting.count) == 0
    assert int(model.optimizer.iterations) == 0


def test_a_loss_that_is_a_sum_over_a_batch_is_refused(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        model = _model()
        model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
    before = model.get_weights()
    with pytest.raises(
        tfps.errors.UnsupportedError, match=r"mean_squared_error.*'sum'"
    ):
        model.fit(_IDS, _TARGETS, verbose=0)
    assert int(model.optimizer.iterations) == 0
    for weight, unchanged in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, unchanged)


@pytest.mark.parametrize("who_reads", ["chief", "workers"])
def test_states_of_streams_are_refused(
    strategy: tfps.ParameterServerStrategy, who_reads: str
) -> None:
    with strategy.scope():
        model = shared_streams.model()
    before = model.get_weights()
    data = shared_streams.data(by_workers=who_reads == "workers")
    with pytest.raises(
        tfps.errors.UnsupportedError, match=r"'rnn_state', computed by '.*lstm"
    ):
        model.fit(**data, verbose=0)
    assert int(model.optimizer.iterations) == 0
    for weight, earlier in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, earlier)


class _Reducing(keras.layers.Layer):
    """Adds up its inputs over replicas, and returns them."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self._method = method

    def call(self, inputs: Any) -> Any:
        """Returns the sum."""
        context = tf.distribute.get_replica_context()
        if context is None:
            return inputs

        def reduce(strategy: Any, values: Any) -> Any:
            if self._method == "reduce_to":
                return strategy.extended.reduce_to("SUM", values, values)
            pairs = [(values, values)]
            return strategy.extended.batch_reduce_to("SUM", pairs)[0]

        return context.merge_call(reduce, args=(inputs,))


@pytest.mark.parametrize("method", ["reduce_to", "batch_reduce_to"])
def test_a_reduction_over_replicas_is_refused(
    strategy: tfps.ParameterServerStrategy, method: str
) -> None:
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((3,)), _Reducing(method), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
    with pytest.raises(tfps.errors.UnsupportedError, match="merge_call"):
        model.fit(_IDS.astype("float32"), _TARGETS, verbose=0)
    assert int(model.optimizer.iterations) == 0


def test_gradients_applied_in_a_scheduled_function_are_refused(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        model = _model()
    coordinator = tfps.ClusterCoordinator(strategy)
    before = model.get_weights()

    @tf.function
    def step() -> None:
        model.optimizer.apply(
            [tf.ones(v.shape) for v in model.trainable_variables],
            model.trainable_variables,
        )

    with pytest.raises(
        tfps.errors.UnsupportedError, match=r"apply\(\) of 'sgd.* elsewhere"
    ):
        coordinator.fetch(coordinator.schedule(step))
    for weight, unchanged in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, unchanged)


def test_a_step_that_raises_on_one_worker_ends_fit_and_no_more(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    def of_worker(context: Any, worst: int) -> tf.data.Dataset:
        ids = _IDS[:320].copy()
        if context.input_pipeline_id == 1:
            ids[7 * 16] = worst
        return tf.data.Dataset.from_tensor_slices((ids, _TARGETS[:320])).batch(
            16
        )

    with strategy.scope():
        model = _model()
    with pytest.raises(Exception, match=r"100000"):
        model.fit(
            tfps.DatasetCreator(lambda context: of_worker(context, 100000)),
            verbose=0,
        )
    before = int(model.optimizer.iterations)
    history = model.fit(
        tfps.DatasetCreator(lambda context: of_worker(context, 0)), verbose=0
    )
    assert np.isfinite(history.history["loss"]).all()
    assert int(model.optimizer.iterations) == before + 20
