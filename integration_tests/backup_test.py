"""Tests of `tfps.callbacks.BackupAndRestore`, by which fit resumes."""

import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_training
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = [
    pytest.mark.compat,
    pytest.mark.cluster(num_workers=1, num_ps=2),
]

_STEPS = 20
_BATCH = 8
_EPOCHS = 3
_random = np.random.default_rng(0)
_X = _random.normal(size=(_STEPS * _BATCH, 3)).astype("float32")
_Y = _X.sum(axis=1, keepdims=True)


class _CrashError(Exception):
    """The end of a chief."""


class _Crash(keras.callbacks.Callback):
    """Ends `fit` after some batches, like the death of the chief."""

    def __init__(self, epoch: int, batch: int) -> None:
        super().__init__()
        self._at = (epoch, batch)
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self._epoch, batch) == self._at:
            raise _CrashError


class _Calls(keras.callbacks.Callback):
    """Records the epochs and batches that Keras reports."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []
        self.batches: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.batches.append(batch)


Make = Callable[[], tfps.ParameterServerStrategy]


@pytest.fixture
def make(cluster: tfps.LocalCluster) -> Iterator[Make]:
    made = []

    def make() -> tfps.ParameterServerStrategy:
        made.append(
            tfps.ParameterServerStrategy(
                cluster.cluster_resolver,
                tfps.partitioners.FixedShardsPartitioner(2),
                scheduling=tfps.SchedulingOptions(
                    max_closures_in_flight_per_worker=1
                ),
            )
        )
        return made[-1]

    yield make
    for strategy in made:
        tfps.ClusterCoordinator(strategy).close()


def _model(strategy: Any = None) -> keras.Model:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def _arrays() -> dict[str, Any]:
    return {"x": _X, "y": _Y, "batch_size": _BATCH, "shuffle": False}


def _creator() -> dict[str, Any]:
    def dataset_fn(context: Any) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices((_X, _Y))
        return dataset.repeat().batch(_BATCH)

    return {"x": tfps.DatasetCreator(dataset_fn), "steps_per_epoch": _STEPS}


def _fit(model: keras.Model, data: dict[str, Any], *callbacks: Any) -> Any:
    return model.fit(
        **data, epochs=_EPOCHS, verbose=0, callbacks=list(callbacks)
    )


def _everything(model: keras.Model) -> list[np.ndarray]:
    """Returns all state, including metrics and the optimizer's slots."""
    variables = [*model.variables, *model.optimizer.variables]
    return [keras.ops.convert_to_numpy(v) for v in variables]


@pytest.mark.parametrize("data", [_arrays, _creator])
@pytest.mark.sample(cases=1)
def test_training_goes_on_inside_the_epoch(
    make: Make, tmp_path: pathlib.Path, data: Callable[[], dict[str, Any]]
) -> None:
    folder = tmp_path / "backup"
    first = _model(make())
    with pytest.raises(_CrashError):
        _fit(
            first,
            data(),
            tfps.callbacks.BackupAndRestore(folder, save_freq=4),
            _Crash(epoch=1, batch=13),
        )
    calls = _Calls()
    second = _model(make())
    _fit(second, data(), tfps.callbacks.BackupAndRestore(folder, 4), calls)
    # Backups are made after batches 4, 8, 12, ... of each epoch.
    assert calls.epochs == [1, 2]
    assert calls.batches == [*range(12, _STEPS), *range(_STEPS)]
    assert int(second.optimizer.iterations) == _EPOCHS * _STEPS
    assert not folder.exists()


@pytest.mark.parametrize("visitation", ["at_least_once", "at_most_once"])
def test_splits_that_were_read_are_not_read_again(
    make: Make, tmp_path: pathlib.Path, visitation: str
) -> None:
    num_splits, size, batch = 12, 8, 4

    def dataset_fn(split: Any) -> tf.data.Dataset:
        ids = tf.range(split * size, (split + 1) * size)
        pairs = tf.data.Dataset.from_tensor_slices((ids[:, None], ids))
        return pairs.batch(batch)

    def counting_model() -> keras.Model:
        with make().scope():
            model = keras.Sequential(
                [
                    keras.Input((1,), dtype="int32"),
                    keras.layers.Embedding(num_splits * size, 1, "zeros"),
                ]
            )
            # A row grows by 1 whenever its id is trained.
            model.compile(
                keras.optimizers.SGD(float(batch)), lambda _, p: -p[:, 0, 0]
            )
        return model

    def fit(model: keras.Model, *callbacks: Any) -> None:
        data = tfps.DatasetCreator(
            dataset_fn, splits=range(num_splits), visitation=visitation
        )
        model.fit(data, epochs=2, verbose=0, callbacks=list(callbacks))

    with pytest.raises(_CrashError):
        fit(
            counting_model(),
            tfps.callbacks.BackupAndRestore(tmp_path, save_freq=4),
            _Crash(epoch=1, batch=13),
        )
    calls = _Calls()
    second = counting_model()
    fit(second, tfps.callbacks.BackupAndRestore(tmp_path, 4), calls)
    assert calls.epochs == [1]
    assert calls.batches[0] >= 8
    table = second.get_layer(index=0).embeddings
    trained = keras.ops.convert_to_numpy(table).reshape(num_splits, size)
    # The first epoch was complete. In the second, batches that two workers were
    # reading may have been trained twice or not at all; all others once.
    other = trained[(trained != 2).any(axis=1)]
    assert len(other) <= 2
    if visitation == "at_least_once":
        assert set(other.flatten()) <= {2, 3}
    else:
        assert set(other.flatten()) <= {1, 2}


def test_a_backup_behind_the_last_batch_of_an_epoch(
    make: Make, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "backup"
    with pytest.raises(_CrashError):
        _fit(
            _model(make()),
            _arrays(),
            tfps.callbacks.BackupAndRestore(folder, save_freq=_STEPS),
            _Crash(epoch=1, batch=3),
        )
    calls = _Calls()
    second = _model(make())
    _fit(
        second,
        _arrays(),
        tfps.callbacks.BackupAndRestore(folder, _STEPS),
        calls,
    )
    assert calls.epochs == [0, 1, 2], "the first has nothing left to train"
    assert calls.batches == [*range(_STEPS), *range(_STEPS)]
    assert int(second.optimizer.iterations) == _EPOCHS * _STEPS


def test_what_is_trained_is_what_would_have_been(
    make: Make, tmp_path: pathlib.Path
) -> None:
    whole = _model(make())
    expected = _fit(whole, _arrays()).history
    folder = tmp_path / "backup"
    with pytest.raises(_CrashError):
        _fit(
            _model(make()),
            _arrays(),
            tfps.callbacks.BackupAndRestore(folder, save_freq=5),
            _Crash(epoch=1, batch=12),
        )
    shared_training.assert_slots_are_trained(whole)
    second = _model(make())
    found = _fit(
        second, _arrays(), tfps.callbacks.BackupAndRestore(folder, 5)
    ).history
    for ours, theirs in zip(
        _everything(second), _everything(whole), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    # This holds for the metrics of the interrupted epoch, too.
    for name in ("loss", "mae"):
        np.testing.assert_allclose(
            found[name], expected[name][1:], rtol=1e-5, err_msg=name
        )


def test_backups_after_epochs_are_kept_on_request(
    make: Make, tmp_path: pathlib.Path
) -> None:
    model = _model(make())
    _fit(
        model,
        _arrays(),
        tfps.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False),
    )
    shared_training.assert_slots_are_trained(model)
    again = _Calls()
    other = _model(make())
    _fit(other, _arrays(), tfps.callbacks.BackupAndRestore(tmp_path), again)
    assert again.epochs == [], "all epochs were trained"
    for ours, theirs in zip(
        _everything(other), _everything(model), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert not list(tmp_path.glob("*"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(("",), "backup_dir"), (("folder", 0), "save_freq=0")],
)
def test_arguments_without_meaning(
    arguments: tuple[Any, ...], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        tfps.callbacks.BackupAndRestore(*arguments)
