"""Tests of Keras's fit, evaluate, predict and save on a real cluster."""

import contextlib
import logging
import os
import pathlib
import re
import signal
import sys
import threading
import time
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

_ROWS = 500
_BATCH = 32
_rng = np.random.default_rng(0)
_IDS = _rng.integers(0, _ROWS, size=(_BATCH * 8, 4)).astype("int32")
_TARGETS = (_IDS % 2).mean(axis=1, keepdims=True).round().astype("float32")


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        variable_partitioner=tfps.partitioners.MinSizePartitioner(4000, 2),
    )
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


def _dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Returns half of the rows for each worker."""
    return (
        tf.data.Dataset.from_tensor_slices((_IDS, _TARGETS))
        .shard(context.num_input_pipelines, context.input_pipeline_id)
        .repeat()
        .batch(_BATCH)
    )


def _layers() -> list[keras.layers.Layer]:
    return [
        keras.Input((4,), dtype="int32"),
        keras.layers.Embedding(_ROWS, 8),
        keras.layers.Flatten(),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]


def _model(**compile_arguments: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(_layers())
    arguments: dict[str, Any] = {
        "optimizer": keras.optimizers.Adam(0.02),
        "loss": "binary_crossentropy",
        "metrics": ["accuracy", keras.metrics.AUC(name="auc")],
    }
    model.compile(**{**arguments, **compile_arguments})
    return model


@pytest.mark.compat
def test_fit_trains_and_counts_exactly(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        model = _model()
    history = model.fit(
        tfps.DatasetCreator(_dataset),
        epochs=3,
        steps_per_epoch=70,
        validation_data=tfps.DatasetCreator(_dataset),
        validation_steps=8,
        verbose=0,
    ).history
    assert sorted(history) == [
        *("accuracy", "auc", "loss"),
        *("val_accuracy", "val_auc", "val_loss"),
    ]
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["val_auc"][-1] > 0.95
    assert all(0 <= a <= 1 for a in history["accuracy"])
    assert int(model.optimizer.iterations) == 210
    assert _examples_counted(model) == 8 * _BATCH, "of the last validation"
    model.evaluate(tfps.DatasetCreator(_dataset), steps=50, verbose=0)
    assert _examples_counted(model) == 50 * _BATCH


def _examples_counted(model: keras.Model) -> float:
    auc = next(
        m for m in model.metrics[1].metrics if isinstance(m, keras.metrics.AUC)
    )
    totals = [
        np.asarray(v)
        for v in (
            auc.true_positives,
            auc.true_negatives,
            auc.false_positives,
            auc.false_negatives,
        )
    ]
    per_threshold = np.sum(totals, axis=0)
    assert (per_threshold == per_threshold[0]).all()
    return float(per_threshold[0])


def test_variables_are_where_they_should_be(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        model = _model()
        model.optimizer.build(model.trainable_variables)
    table = model.layers[0].embeddings.value
    assert isinstance(table, tfps.ShardedVariable)
    devices = [shard.device for shard in table.variables]
    assert len(set(devices)) == 2
    assert all("/job:ps/" in device for device in devices)
    slots = [
        v.value
        for v in model.optimizer.variables
        if isinstance(v.value, tfps.ShardedVariable)
    ]
    assert len(slots) == 2
    for slot in slots:
        assert [shard.device for shard in slot.variables] == devices
    low, high = sorted(strategy.bytes_per_ps)
    assert high - low < 16 * 32 * 4 * 3, "the largest whole variable and slots"


def test_weights_do_not_depend_on_the_number_of_shards(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        sharded = _model()
    alone = _model()
    for ours, theirs in zip(sharded.weights, alone.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


class OwnStep(keras.Model):
    """Model with a train_step that reports logs of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(keras.ops.cast(x, "float32") / _ROWS)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_variables, strict=True)
        )
        return {"mine": loss, "size": tf.shape(x)[0]}


def test_a_custom_train_step(strategy: tfps.ParameterServerStrategy) -> None:
    with strategy.scope():
        model = OwnStep()
        model.compile(keras.optimizers.SGD(0.1))
    history = model.fit(
        tfps.DatasetCreator(_dataset), epochs=2, steps_per_epoch=30, verbose=0
    ).history
    assert sorted(history) == ["mine", "size"]
    assert history["size"] == [_BATCH, _BATCH]
    assert 0 < history["mine"][1] < 0.6
    assert int(model.optimizer.iterations) == 60


class _Batches(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.logs: list[dict[str, float]] = []

    def on_train_batch_end(
        self, batch: int, logs: dict[str, float] | None = None
    ) -> None:
        self.logs.append(dict(logs or {}))


def test_batch_callbacks_are_called_for_every_batch(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        model = _model()
    batches = _Batches()
    model.fit(
        tfps.DatasetCreator(_dataset),
        steps_per_epoch=200,
        callbacks=[batches],
        verbose=0,
    )
    assert len(batches.logs) == 200
    assert set(batches.logs[-1]) == {"accuracy", "auc", "loss"}
    different = {logs["loss"] for logs in batches.logs if logs}
    assert len(different) >= 3, "the logs move within the epoch"


def test_how_many_calls_run_at_a_time_is_tried_and_kept(
    cluster: tfps.LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tfps_plugin")
    strategy = tfps.ParameterServerStrategy(
        # Short calls are measured soon.
        cluster.cluster_resolver,
        scheduling=tfps.SchedulingOptions(steps_per_closure=5),
    )
    coordinator = tfps.ClusterCoordinator(strategy)
    try:
        with strategy.scope():
            # Its loss is constant from the beginning.
            model = _model(optimizer=keras.optimizers.SGD(0.0))
        tried: set[int] = set()

        def kept() -> list[str]:
            return [
                record.getMessage()
                for record in caplog.records
                if "at a time, unless" in record.getMessage()
            ]

        def note(batch: int, logs: Any) -> None:
            del batch, logs
            tried.add(coordinator.num_lanes // coordinator.num_workers)
            model.stop_training = bool(kept())

        model.fit(
            tfps.DatasetCreator(_dataset),
            epochs=1,
            steps_per_epoch=20_000,
            callbacks=[keras.callbacks.LambdaCallback(on_batch_end=note)],
            verbose=0,
        )
        [message] = kept()
        number, speeds = re.fullmatch(
            r"Each worker runs (\d) calls of \S+ at a time, .* were (.*)\.",
            message,
        ).groups()  # type: ignore[union-attr]
        measured = {
            int(number): float(speed)
            for speed, number in re.findall(r"(\S+) with (\d)", speeds)
        }
        assert tried == set(measured) >= {1, 2}
        assert all(1 < speed < 100_000 for speed in measured.values())
        assert int(number) in measured
        assert coordinator.num_lanes == 2 * coordinator.num_workers

        before = int(model.optimizer.iterations)
        model.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=40, verbose=0)
        assert int(model.optimizer.iterations) == before + 40
        assert kept() == [message]

        def break_off(batch: int, logs: Any) -> None:
            del batch, logs
            coordinator.limit_in_flight(coordinator.in_flight_limits.most)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            model.fit(
                tfps.DatasetCreator(_dataset),
                steps_per_epoch=40,
                callbacks=[
                    keras.callbacks.LambdaCallback(on_batch_end=break_off)
                ],
                verbose=0,
            )
        assert coordinator.num_lanes == 2 * coordinator.num_workers
    finally:
        coordinator.close()


@pytest.mark.parametrize("steps_per_execution", [1, 3, 50])
@pytest.mark.sample(cases=1)
def test_no_step_is_run_beyond_the_epoch(
    strategy: tfps.ParameterServerStrategy, steps_per_execution: int
) -> None:
    with strategy.scope():
        model = _model(steps_per_execution=steps_per_execution)
    model.fit(
        tfps.DatasetCreator(_dataset), epochs=2, steps_per_epoch=7, verbose=0
    )
    assert int(model.optimizer.iterations) == 14


def test_stop_training_in_a_batch(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 12

    with strategy.scope():
        model = _model()
    model.fit(
        tfps.DatasetCreator(_dataset),
        steps_per_epoch=100,
        callbacks=[Stop()],
        verbose=0,
    )
    assert int(model.optimizer.iterations) == 13


@pytest.mark.compat
def test_what_is_saved_is_a_plain_model(
    strategy: tfps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    with strategy.scope():
        model = _model()
    model.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=20, verbose=0)
    expected = model.predict(_IDS[:9], verbose=0)
    assert expected.shape == (9, 1)
    model.save(tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert not isinstance(
        plain.layers[0].embeddings.value, tfps.ShardedVariable
    )
    np.testing.assert_allclose(
        plain.predict(_IDS[:9], verbose=0), expected, rtol=1e-5
    )
    assert int(plain.optimizer.iterations) == 20
    with strategy.scope():
        again = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(again.layers[0].embeddings.value, tfps.ShardedVariable)
    again.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=5, verbose=0)
    assert int(again.optimizer.iterations) == 25


def test_evaluate_and_predict_of_arrays_are_exact_and_in_order(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        model = _model()
    alone = _model()
    np.testing.assert_allclose(
        model.evaluate(_IDS, _TARGETS, verbose=0),
        alone.evaluate(_IDS, _TARGETS, verbose=0),
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        model.predict(_IDS, verbose=0),
        alone.predict(_IDS, verbose=0),
        rtol=1e-5,
    )
    model.fit(
        tfps.DatasetCreator(_dataset),
        steps_per_epoch=5,
        validation_data=(_IDS, _TARGETS),
        verbose=0,
    )
    assert _examples_counted(model) == len(_IDS)


def test_an_error_of_a_step_arrives_as_itself_and_fit_goes_on_after(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    class Checked(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            tf.debugging.assert_less(x, _ROWS, message="no such row")
            return x

    def broken(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return _dataset(context).map(lambda x, y: (x + _ROWS, y))

    with strategy.scope():
        layers = _layers()
        model = keras.Sequential([layers[0], Checked(), *layers[1:]])
        model.compile("sgd", "mse")
    with pytest.raises(tf.errors.InvalidArgumentError, match="no such row"):
        model.fit(tfps.DatasetCreator(broken), steps_per_epoch=50, verbose=0)
    before = int(model.optimizer.iterations)
    model.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=10, verbose=0)
    assert int(model.optimizer.iterations) == before + 10


def test_a_nan_is_reported_with_its_steps_and_worker(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    def later(context: tf.distribute.InputContext) -> tf.data.Dataset:
        def spoil(number: Any, pair: Any) -> Any:
            x, y = pair
            return x, tf.where(number < 20, y, np.nan)

        return _dataset(context).enumerate().map(spoil)

    def checked(y: Any, predicted: Any) -> Any:
        return tf.debugging.check_numerics(
            keras.losses.mean_squared_error(y, predicted), "the loss"
        )

    with strategy.scope():
        model = keras.Sequential(_layers())
        model.compile("sgd", checked)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="the loss"
    ) as caught:
        model.fit(tfps.DatasetCreator(later), steps_per_epoch=200, verbose=0)
    notes = " ".join(caught.value.__notes__)
    assert re.search(r"ran on worker [01]", notes)
    found = re.search(r"steps (\d+) to (\d+) of this epoch", notes)
    assert found
    # Each worker's 21st batch is the first of them.
    assert int(found[1]) <= 42
    assert int(found[2]) > 20


def test_an_interrupt_leaves_the_cluster_usable(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 30:
                raise KeyboardInterrupt

    with strategy.scope():
        model = _model()
    with pytest.raises(KeyboardInterrupt):
        model.fit(
            tfps.DatasetCreator(_dataset),
            steps_per_epoch=1000,
            callbacks=[Interrupt()],
            verbose=0,
        )
    tfps.ClusterCoordinator(strategy).join()
    before = int(model.optimizer.iterations)
    assert before <= 31
    model.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=10, verbose=0)
    assert int(model.optimizer.iterations) == before + 10


_START_SECONDS = 200.0


def _is_waiting(thread: threading.Thread) -> bool:
    assert thread.ident is not None
    frame = sys._current_frames()[thread.ident]
    return frame.f_code is threading.Condition.wait.__code__


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Lets Python obey Ctrl-C, which a shell turns off in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_ctrl_c_leaves_the_cluster_usable(
    strategy: tfps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    """It arrives while `fit` waits for workers, outside of user code."""
    gate = tmp_path / "gate"
    has_begun = threading.Event()

    def held_up(context: tf.distribute.InputContext) -> tf.data.Dataset:
        # It polls for the file.
        is_open = (
            tf.data.Dataset.range(10**9)
            .filter(lambda _: tf.size(tf.io.matching_files(str(gate))) > 0)
            .take(1)
        )
        rest = is_open.flat_map(lambda _: _dataset(context))
        return _dataset(context).take(20).concatenate(rest)

    class Begin(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 30:
                has_begun.set()

    def interrupt() -> None:
        # The first step may take long on a busy machine.
        has_begun.wait(_START_SECONDS)
        deadline = time.monotonic() + 60.0
        never = threading.Event()
        while not _is_waiting(threading.main_thread()):
            if time.monotonic() > deadline:
                break  # Too soon, but better than a test that never ends.
            never.wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        gate.touch()

    with strategy.scope():
        model = _model()
    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        model.fit(
            tfps.DatasetCreator(held_up),
            steps_per_epoch=100_000,
            callbacks=[Begin()],
            verbose=0,
        )
    interrupter.join()
    assert has_begun.is_set()
    tfps.ClusterCoordinator(strategy).join()
    before = int(model.optimizer.iterations)
    model.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=10, verbose=0)
    assert int(model.optimizer.iterations) == before + 10


def test_input_that_runs_dry_stops_with_keras_s_own_warning(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    def short(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return _dataset(context).take(5)

    with strategy.scope():
        model = _model()
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(tfps.DatasetCreator(short), steps_per_epoch=500, verbose=0)
    assert int(model.optimizer.iterations) <= 10


def test_train_on_batch_runs_on_the_chief_on_the_real_variables(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        model = _model()
    alone = _model()
    for _ in range(2):
        ours = model.train_on_batch(_IDS, _TARGETS)
        theirs = alone.train_on_batch(_IDS, _TARGETS)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=0.01)
    assert int(model.optimizer.iterations) == 2


_Fit = Callable[[keras.Model], Any]
_REFUSED: dict[str, tuple[_Fit, str]] = {
    "no end": (
        lambda model: model.fit(tfps.DatasetCreator(_dataset), verbose=0),
        "steps_per_epoch",
    ),
    "targets beside": (
        lambda model: model.fit(
            tfps.DatasetCreator(_dataset), _TARGETS, steps_per_epoch=2
        ),
        "y",
    ),
    "targets beside a creator that validates": (
        lambda model: model.fit(
            tfps.DatasetCreator(_dataset),
            steps_per_epoch=2,
            validation_data=(tfps.DatasetCreator(_dataset), _TARGETS),
        ),
        r"Received: validation_data=\(DatasetCreator, \.\.\.\)",
    ),
    "a batch size for a creator that validates": (
        lambda model: model.fit(
            tfps.DatasetCreator(_dataset),
            steps_per_epoch=2,
            validation_data=tfps.DatasetCreator(_dataset),
            validation_batch_size=4,
        ),
        "Received: validation_batch_size",
    ),
    "no dataset": (
        lambda model: model.fit(
            tfps.DatasetCreator(lambda context: 3), steps_per_epoch=2
        ),
        "Received: result=3",
    ),
    "a number of steps without meaning": (
        lambda model: model.fit(_IDS, _TARGETS, steps_per_epoch=-2),
        "Received: steps_per_epoch=-2",
    ),
    "a frequency that Keras would divide by": (
        lambda model: model.fit(_IDS, _TARGETS, validation_freq=0),
        "Received: validation_freq=0",
    ),
}


@pytest.mark.parametrize(("fit", "text"), _REFUSED.values(), ids=_REFUSED)
def test_input_that_cannot_be_honoured_is_refused(
    strategy: tfps.ParameterServerStrategy, fit: _Fit, text: str
) -> None:
    with strategy.scope():
        model = _model()
    with pytest.raises(errors.InputError, match=text):
        fit(model)
    assert int(model.optimizer.iterations) == 0


@pytest.mark.parametrize("no_number", [0, -1])
@pytest.mark.sample(cases=1)
def test_no_number_of_steps_is_all_input(
    strategy: tfps.ParameterServerStrategy, no_number: int
) -> None:
    with strategy.scope():
        model = _model()
    num_batches = len(_IDS) // _BATCH

    def read(context: Any) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((_IDS, _TARGETS))
        return data.batch(_BATCH)

    data = read(None)
    inputs = {
        num_batches: data,
        2 * num_batches: tfps.DatasetCreator(read),
    }
    num_done = 0
    for num_steps, x in inputs.items():
        model.fit(
            x,
            epochs=2,
            steps_per_epoch=no_number,
            validation_data=x,
            validation_steps=no_number,
            verbose=0,
        )
        num_done += 2 * num_steps
        assert int(model.optimizer.iterations) == num_done
    expected = model.evaluate(data, verbose=0)
    actual = model.evaluate(data, steps=no_number, verbose=0)
    assert actual == pytest.approx(expected)
    predictions = model.predict(data, steps=no_number, verbose=0)
    assert len(predictions) == len(_IDS)


def _untouched(context: tf.distribute.InputContext) -> tf.data.Dataset:
    pytest.fail("the input is made, though it will be refused")


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("evaluate", {"y": _TARGETS}),
        ("evaluate", {"batch_size": 3}),
        ("evaluate", {"sample_weight": _TARGETS}),
        ("evaluate", {"y": _TARGETS, "sample_weight": _TARGETS}),
        ("predict", {"batch_size": 3}),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_what_a_dataset_creator_decides_is_refused_beside_it(
    strategy: tfps.ParameterServerStrategy,
    method: str,
    arguments: dict[str, Any],
) -> None:
    with strategy.scope():
        model = _model()
    names = ", ".join(arguments)
    with pytest.raises(
        errors.InputError,
        match=rf"^{method}\(\) with a tfps.DatasetCreator .*: {names}\. Make",
    ):
        getattr(model, method)(
            tfps.DatasetCreator(_untouched), steps=2, verbose=0, **arguments
        )


@pytest.mark.parametrize("name", ["y", "sample_weight"])
def test_predict_has_no_targets_as_in_keras(
    strategy: tfps.ParameterServerStrategy, name: str
) -> None:
    with strategy.scope():
        model = _model()
    with pytest.raises(TypeError, match=f"'{name}'"):
        model.predict(tfps.DatasetCreator(_untouched), **{name: _TARGETS})


def test_a_model_from_outside_the_scope_is_refused(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    metric = keras.metrics.Precision(name="elsewhere")
    with strategy.scope():
        model = _model(metrics=[metric])
    with pytest.raises(errors.VariableCreationError, match="elsewhere"):
        model.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=2, verbose=0)


def test_an_optimizer_from_outside_the_scope_is_made_again(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    optimizer = keras.optimizers.Adam(0.0625)
    with strategy.scope():
        model = keras.Sequential(_layers())
    model.compile(optimizer, "mse")
    model.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=4, verbose=0)
    assert model.optimizer is not optimizer
    assert float(model.optimizer.learning_rate) == 0.0625
    assert int(model.optimizer.iterations) == 4


def test_jit_compilation_is_ignored_with_a_warning(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope(), pytest.warns(UserWarning, match="jit_compile"):
        model = _model(jit_compile=True)
    assert not model.jit_compile
    model.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=2, verbose=0)
    assert int(model.optimizer.iterations) == 2


@pytest.mark.parametrize("in_scope", [False, True])
def test_a_model_of_this_process_does_not_train_on_input_for_workers(
    strategy: tfps.ParameterServerStrategy, in_scope: bool
) -> None:
    model = _model()
    creator = tfps.DatasetCreator(_untouched)
    calls: list[Callable[[], Any]] = [
        lambda: model.fit(creator, steps_per_epoch=2, verbose=0),
        lambda: model.fit(_IDS, _TARGETS, validation_data=creator, verbose=0),
        lambda: model.evaluate(creator, steps=2, verbose=0),
    ]
    for call in calls:
        scope = strategy.scope() if in_scope else contextlib.nullcontext()
        with scope, pytest.raises(errors.InputError, match="not on the clust"):
            call()
    assert not model.optimizer.built


def test_models_outside_the_strategy_are_left_alone_with_a_warning(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    model = _model()
    with pytest.warns(UserWarning, match="2 workers wait") as caught:
        history = model.fit(_IDS, _TARGETS, batch_size=_BATCH, verbose=0)
    assert [each.filename for each in caught] == [__file__]
    assert int(model.optimizer.iterations) == 8
    assert sorted(history.history) == ["accuracy", "auc", "loss"]


class Balanced(keras.Model):
    """Model whose optimizer subtracts what its step adds to every row."""

    # Large enough that updates of two workers meet.
    shape = (4096, 32)

    def __init__(self) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(*self.shape, "zeros")

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return self.table(ids)

    def train_step(self, data: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.table(data))
        (weight,) = self.table.weights
        self.optimizer.apply(tape.gradient(loss, [weight]), [weight])
        weight.value.scatter_add(
            tf.IndexedSlices(2.0 * tf.ones(self.shape), data)
        )
        weight.assign_sub(tf.ones(self.shape))
        return {"loss": loss}


def test_what_a_step_adds_is_kept_beside_the_updates_of_others(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        del context
        ids = np.arange(Balanced.shape[0]).reshape([1, -1])
        return tf.data.Dataset.from_tensor_slices(ids).repeat()

    with strategy.scope():
        model = Balanced()
        model.compile(keras.optimizers.SGD(1.0))
    model.fit(tfps.DatasetCreator(dataset), steps_per_epoch=400, verbose=0)
    (weight,) = model.table.weights
    np.testing.assert_array_equal(weight.numpy(), np.zeros(Balanced.shape))
