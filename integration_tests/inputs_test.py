"""Tests that fit, evaluate and predict read every row once."""

import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=1)

_ROWS = 530  # not a multiple of the batch size
_BATCH = 16
_X = np.random.default_rng(0).normal(size=(_ROWS, 3)).astype("float32")
_IDS = np.arange(_ROWS, dtype="int64")


@pytest.fixture(scope="module")
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    coordinator = tfps.ClusterCoordinator(strategy)
    yield strategy
    coordinator.close()


class Seen(keras.metrics.Metric):
    """Counts how often each row is seen; targets are the rows' numbers."""

    def __init__(self, name: str = "seen") -> None:
        super().__init__(name=name)
        self.counts = self.add_weight(
            shape=(_ROWS,), initializer="zeros", name="counts"
        )

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        ids = tf.cast(tf.reshape(y_true, [-1]), tf.int64)
        self.counts.assign_add(
            tf.math.unsorted_segment_sum(
                tf.ones_like(ids, tf.float32), ids, _ROWS
            )
        )

    def result(self) -> Any:
        return keras.ops.sum(self.counts)


def _model(
    strategy: tfps.ParameterServerStrategy, **arguments: Any
) -> keras.Model:
    with strategy.scope():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", _no_loss, metrics=[Seen()], **arguments)
    return model


def _no_loss(y_true: Any, y_pred: Any) -> Any:
    return 0.0 * y_pred[:, 0]


def _counts(model: keras.Model) -> np.ndarray:
    seen = next(m for m in model.metrics[1].metrics if isinstance(m, Seen))
    return np.asarray(seen.counts)


def _rows(begin: Any, end: Any) -> tf.data.Dataset:
    return (
        tf.data.Dataset.from_tensor_slices((_X, _IDS))
        .skip(begin)
        .take(end - begin)
    )


def _shares(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Returns 100 rows for the first of two workers, the rest for the other."""
    bounds = [0, 100, _ROWS] if context.num_input_pipelines == 2 else [0, _ROWS]
    i = context.input_pipeline_id
    return _rows(bounds[i], bounds[i + 1]).batch(_BATCH)


_RANGES = [(i, min(i + 40, _ROWS)) for i in range(0, _ROWS, 40)]


def _of_range(bounds: Any) -> tf.data.Dataset:
    return _rows(*bounds).batch(_BATCH)


class Batches(keras.callbacks.Callback):
    """Counts the batches of every epoch, and how often it had each row."""

    def __init__(self) -> None:
        super().__init__()
        self.per_epoch: list[int] = []
        self.rows_of_epoch: list[np.ndarray] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.per_epoch.append(0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        assert batch == self.per_epoch[-1]
        self.per_epoch[-1] += 1

    def on_test_begin(self, logs: Any = None) -> None:
        # Validation follows the epoch, and counts from zero.
        self.rows_of_epoch.append(_counts(self.model))


class Generated(keras.utils.PyDataset):
    def __len__(self) -> int:
        return -(-_ROWS // _BATCH)

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * _BATCH, (index + 1) * _BATCH)
        return _X[rows], _IDS[rows]


def _generator() -> Iterator[Any]:
    for index in range(-(-_ROWS // _BATCH)):
        yield Generated()[index]


_LENGTH = -(-_ROWS // _BATCH)
# Inputs of fit(), and the number of batches of each.
_INPUTS: dict[str, Any] = {
    "shares": (lambda: (tfps.DatasetCreator(_shares),), 7 + 27),
    "splits": (
        lambda: (tfps.DatasetCreator(_of_range, splits=_RANGES),),
        sum(-(-(e - b) // _BATCH) for b, e in _RANGES),
    ),
    "arrays": (lambda: (_X, _IDS), -(-_ROWS // 32)),
    "dataset": (lambda: (_rows(0, _ROWS).batch(_BATCH),), _LENGTH),
    "unknown length": (
        lambda: (_rows(0, _ROWS).filter(lambda x, i: True).batch(_BATCH),),
        _LENGTH,
    ),
    "PyDataset": (lambda: (Generated(),), _LENGTH),
    "generator": (lambda: (_generator(),), _LENGTH),
}


@pytest.mark.compat
@pytest.mark.parametrize("name", _INPUTS)
@pytest.mark.sample(cases=3)
def test_an_epoch_is_every_row_once(
    strategy: tfps.ParameterServerStrategy, name: str
) -> None:
    make, num_batches = _INPUTS[name]
    model = _model(strategy)
    batches = Batches()
    epochs = 1 if name == "generator" else 2
    history = model.fit(
        *make(),
        epochs=epochs,
        validation_data=make()[0] if len(make()) == 1 else make(),
        callbacks=[batches],
        verbose=0,
    ).history
    assert batches.per_epoch == [num_batches] * epochs
    np.testing.assert_array_equal(batches.rows_of_epoch, [[1] * _ROWS] * epochs)
    assert history["seen"] == [_ROWS] * epochs
    assert history["val_seen"] == [_ROWS] * epochs
    assert int(model.optimizer.iterations) == num_batches * epochs
    model.evaluate(*make(), verbose=0)
    np.testing.assert_array_equal(_counts(model), 1)


@pytest.mark.parametrize("name", ["shares", "splits", "unknown length"])
def test_steps_per_execution_changes_nothing(
    strategy: tfps.ParameterServerStrategy, name: str
) -> None:
    make, num_batches = _INPUTS[name]
    model = _model(strategy, steps_per_execution=4)
    history = model.fit(*make(), epochs=2, verbose=0).history
    assert history["seen"] == [_ROWS] * 2
    np.testing.assert_array_equal(_counts(model), 1)
    assert int(model.optimizer.iterations) == 2 * num_batches


@pytest.mark.parametrize("name", ["shares", "arrays", "unknown length"])
def test_predictions_come_in_the_order_of_the_input(
    strategy: tfps.ParameterServerStrategy, name: str
) -> None:
    make, _ = _INPUTS[name]
    model = _model(strategy)
    x = make()[0]
    expected = np.asarray(model(_X))
    found = model.predict(x, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    found = model.predict(x, steps=3, verbose=0)
    assert len(found) == 3 * (32 if name == "arrays" else _BATCH) or (
        name == "arrays"
    )
    np.testing.assert_allclose(found, expected[: len(found)], rtol=1e-5)


def test_input_exactly_as_long_as_an_epoch_begins_again(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    model = _model(strategy)
    history = model.fit(
        tfps.DatasetCreator(_shares), steps_per_epoch=34, epochs=3, verbose=0
    ).history
    assert history["seen"] == [_ROWS] * 3


def test_input_that_ends_too_soon_warns_and_stops_the_epoch(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    model = _model(strategy)
    batches = Batches()
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(
            tfps.DatasetCreator(_shares),
            steps_per_epoch=500,
            callbacks=[batches],
            verbose=0,
        )
    np.testing.assert_array_equal(_counts(model), 1)
    assert int(model.optimizer.iterations) == 34
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(_X, _IDS, batch_size=_BATCH, steps_per_epoch=50, verbose=0)
    np.testing.assert_array_equal(_counts(model), 1)


def _for_the_first_alone(context: tf.distribute.InputContext) -> Any:
    """Returns endless rows for the first of two workers, none for the other."""
    nothing = context.input_pipeline_id == 1
    batches = _rows(0, 160).batch(_BATCH).filter(lambda x, i: not nothing)
    return batches.repeat()


@pytest.mark.parametrize("steps_per_execution", [None, 1, 20])
def test_a_worker_with_nothing_to_repeat_makes_no_steps(
    strategy: tfps.ParameterServerStrategy,
    steps_per_execution: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    arguments = {}
    if steps_per_execution is not None:
        arguments["steps_per_execution"] = steps_per_execution
    model = _model(strategy, **arguments)
    model.fit(
        tfps.DatasetCreator(_for_the_first_alone),
        steps_per_epoch=40,
        epochs=2,
        verbose=0,
    )
    # All steps were made, with the existing rows.
    assert int(model.optimizer.iterations) == 80
    np.testing.assert_array_equal(_counts(model)[:160], 4)
    assert "worker 1 has ended" in caplog.text
    assert "worker 0 has ended" not in caplog.text


def test_other_splits_in_every_pass(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    asked = []

    def splits(epoch: int) -> list[tuple[int, int]]:
        asked.append(epoch)
        return [(10 * epoch, 10 * epoch + 5), (100, 107)]

    model = _model(strategy)
    for epochs in (2, 1):
        model.fit(
            tfps.DatasetCreator(_of_range, splits=splits),
            epochs=epochs,
            verbose=0,
        )
        last = 10 * (epochs - 1)
        seen = np.flatnonzero(_counts(model))
        assert seen.tolist() == [*range(last, last + 5), *range(100, 107)]
    assert asked == [0, 1, 0]


def _of_file(file: tf.Tensor) -> tf.data.Dataset:
    lines = tf.data.TextLineDataset(file)
    ids = lines.map(lambda line: tf.strings.to_number(line, tf.int64))
    return ids.map(lambda i: (tf.zeros([3]), i)).batch(2)


def test_files_are_splits(
    strategy: tfps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    files = []
    for number in range(5):
        files.append(str(tmp_path / f"{number}.csv"))
        pathlib.Path(files[-1]).write_text(f"{number}\n{number + 100}\n")

    model = _model(strategy)
    model.fit(tfps.DatasetCreator(_of_file, splits=files), verbose=0)
    seen = np.flatnonzero(_counts(model)).tolist()
    assert seen == [*range(5), *range(100, 105)]


def test_files_that_the_function_opens_are_splits(
    strategy: tfps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    files = [str(tmp_path / f"{number}.csv") for number in range(3)]
    for number, file in enumerate(files):
        pathlib.Path(file).write_text(f"i,unused\n{number},0\n{number + 10},0")

    def dataset_fn(file: str) -> tf.data.Dataset:
        # This reads the columns of the file, as in one process.
        data = tf.data.experimental.make_csv_dataset(
            file, 2, select_columns=["i"], num_epochs=1, shuffle=False
        )
        return data.map(
            lambda row: (tf.zeros([2, 3]), tf.cast(row["i"], tf.int64))
        )

    model = _model(strategy)
    model.fit(tfps.DatasetCreator(dataset_fn, splits=files), verbose=0)
    seen = np.flatnonzero(_counts(model)).tolist()
    assert seen == [0, 1, 2, 10, 11, 12]


def test_class_weights_weigh_what_workers_read(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    labels = (_IDS % 2).astype("float32")

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((_X, labels))
        return data.shard(
            context.num_input_pipelines, context.input_pipeline_id
        ).batch(_BATCH)

    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(
            keras.optimizers.SGD(0.0),
            "mse",
            weighted_metrics=[keras.metrics.MeanSquaredError(name="mse")],
        )
    weights = {0: 1.0, 1: 3.0}
    ours = model.fit(
        tfps.DatasetCreator(dataset_fn), class_weight=weights, verbose=0
    ).history
    error = (np.asarray(model(_X))[:, 0] - labels) ** 2
    sample_weights = np.where(labels == 1, 3.0, 1.0)
    np.testing.assert_allclose(
        ours["mse"], np.average(error, weights=sample_weights), rtol=1e-5
    )


# The data service asks for the options of the dataset that it is given.
@pytest.mark.filterwarnings("ignore:To make it possible to preserve")
def test_the_data_service_is_read_by_workers(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    dispatcher = tf.data.experimental.service.DispatchServer()
    server = tf.data.experimental.service.WorkerServer(
        tf.data.experimental.service.WorkerConfig(
            dispatcher.target.split("://")[1]
        )
    )

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return (
            _rows(0, _ROWS)
            .batch(_BATCH)
            .apply(
                tf.data.experimental.service.distribute(
                    "distributed_epoch", dispatcher.target, job_name="train"
                )
            )
        )

    model = _model(strategy)
    model.fit(tfps.DatasetCreator(dataset_fn), verbose=0)
    np.testing.assert_array_equal(_counts(model), 1)
    del server


class Interfering(keras.callbacks.Callback):
    """Reads the model in the middle of an epoch, in many ways."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self._path = path
        self.saved = -1
        self.iterations: list[int] = []
        self.evaluated: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch % 5 == 2:
            self.iterations.append(int(self.model.optimizer.iterations))
        if batch == 9:
            path = tf.train.Checkpoint(self.model.optimizer).write(self._path)
            reader = tf.train.load_checkpoint(path)
            (self.saved,) = (
                int(reader.get_tensor(name))
                for name, dtype in reader.get_variable_to_dtype_map().items()
                if dtype == tf.int64 and "save_counter" not in name
            )
        if batch == 12:
            weights = self.model.get_weights()
            predicted = self.model.predict(_X[:50], verbose=0)
            self.evaluated = self.model.evaluate(_X, _IDS, verbose=0)
            for before, after in zip(
                weights, self.model.get_weights(), strict=True
            ):
                np.testing.assert_array_equal(before, after)
            np.testing.assert_allclose(
                predicted, _X[:50] @ weights[0] + weights[1], rtol=1e-4
            )


@pytest.mark.parametrize("name", ["shares", "arrays"])
def test_what_a_callback_sees_lies_between_two_steps(
    strategy: tfps.ParameterServerStrategy, name: str, tmp_path: pathlib.Path
) -> None:
    make, _ = _INPUTS[name]
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=[Seen()])
    callback = Interfering(tmp_path / "checkpoint")
    steps = {"steps_per_epoch": 34} if name == "shares" else {}
    model.fit(*make(), callbacks=[callback], verbose=0, **steps)
    expected = list(range(3, callback.iterations[-1] + 1, 5))
    assert callback.iterations == expected
    assert callback.saved == 10
    assert len(expected) == (7 if name == "shares" else 3)
    assert callback.evaluated[1] == _ROWS


class Opening(keras.callbacks.Callback):
    """Makes a file after some batches, or after a timeout."""

    def __init__(self, file: pathlib.Path, num_batches: int) -> None:
        super().__init__()
        self._file = file
        self._num_batches = num_batches
        self._watchdog = threading.Timer(60, file.touch)
        self._watchdog.start()
        self.is_in_time = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self._num_batches - 1:
            self.is_in_time = self._watchdog.is_alive()
            self._watchdog.cancel()
            self._watchdog.join()
            self._file.touch()


class StopEvaluating(keras.callbacks.Callback):
    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_evaluating = batch == 4


@pytest.mark.parametrize("name", ["shares", "arrays"])
def test_an_evaluation_that_is_broken_off_counts_what_it_has_seen(
    strategy: tfps.ParameterServerStrategy, name: str
) -> None:
    model = _model(strategy)
    make, _ = _INPUTS[name]
    model.evaluate(*make(), callbacks=[StopEvaluating()], verbose=0)
    seen = _counts(model).sum()
    if name == "arrays":
        assert seen == 5 * 32
    else:
        assert 4 * _BATCH < seen <= _ROWS


def test_a_slow_split_holds_nobody_up(
    strategy: tfps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    gate = tmp_path / "gate"
    there = tmp_path / "there"
    there.touch()

    def dataset_fn(split: Any) -> tf.data.Dataset:
        number, gate = split
        # It polls for the file.
        is_open = (
            tf.data.Dataset.range(10**9)
            .filter(lambda _: tf.size(tf.io.matching_files(gate)) > 0)
            .take(1)
        )
        ids = is_open.flat_map(
            lambda _: tf.data.Dataset.range(number, 500, 100)
        )
        return ids.map(lambda i: (tf.zeros([3]), i)).batch(2)

    splits = [(0, str(gate)), *((n, str(there)) for n in range(1, 7))]
    model = _model(strategy)
    opening = Opening(gate, num_batches=6 * 3)
    model.fit(
        tfps.DatasetCreator(dataset_fn, splits=splits),
        callbacks=[opening],
        verbose=0,
    )
    assert opening.is_in_time
    assert _counts(model).sum() == 7 * 5


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"splits": "train.csv"}, "list of splits"),
        ({"splits": []}, "at least one split"),
        ({"splits": [1, "b"]}, "of one type"),
        ({"splits": [1], "visitation": "exactly_once"}, "visitation="),
    ],
)
def test_splits_that_cannot_be_read_are_refused(
    strategy: tfps.ParameterServerStrategy, arguments: Any, text: str
) -> None:
    model = _model(strategy)
    with pytest.raises(errors.InputError, match=text):
        model.fit(tfps.DatasetCreator(_of_range, **arguments), verbose=0)
