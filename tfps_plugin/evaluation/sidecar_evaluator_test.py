"""The evaluator in this process, on files of every kind and every state.

The model answers `kernel + bias`, and both are the number of the checkpoint:
half of one checkpoint and half of another would show.
"""

import itertools
import logging
import os
import pathlib
import shutil
import signal
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.evaluation.checkpoint import Checkpoint
from tfps_plugin.evaluation.folder import CheckpointFolder
from tfps_plugin.evaluation.report import Evaluation

_STEPS_PER_NUMBER = 100
_ONES, _ZEROS = np.ones([6, 1], "float32"), np.zeros([6, 1], "float32")


def _make_model(number: float = -1.0) -> keras.Model:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"], run_eagerly=True)
    model.build([None, 1])
    _become(model, number)
    return model


def _become(model: keras.Model, number: float) -> None:
    for weight in model.weights:
        weight.assign(np.full(weight.shape, number))
    model.optimizer.iterations.assign(int(number * _STEPS_PER_NUMBER))


def _expected(number: int) -> tuple[int, dict[str, float]]:
    return number * _STEPS_PER_NUMBER, {
        "loss": 4.0 * number**2,
        "mae": 2.0 * number,
    }


def _what(evaluations: list[Evaluation]) -> list[tuple[int, dict[str, float]]]:
    return [(each.step, each.metrics) for each in evaluations]


def _make_evaluator(folder: pathlib.Path, **options: Any) -> Any:
    return tfps.SidecarEvaluator(
        **{
            "model": _make_model(),
            "data": (_ONES, _ZEROS),
            "checkpoint_dir": folder,
            "poll_interval_seconds": 0.01,
            "no_checkpoint_timeout_seconds": 30.0,
            **options,
        }
    )


def _save(folder: pathlib.Path, number: int, form: str = "e-{}.keras") -> str:
    model = _make_model(number)
    path = str(folder / form.format(number))
    folder.mkdir(exist_ok=True)
    if form.endswith(".keras"):
        model.save(path)
    elif form.endswith(".weights.h5"):
        model.save_weights(path, overwrite=True)
    else:
        tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(path)
    return path


_FORMS = ["e-{}.keras", "w-{}.weights.h5", "ckpt-{}"]


def _callback(file: str, **options: Any) -> Callable[..., None]:
    def write(model: keras.Model, folder: pathlib.Path) -> None:
        callback = keras.callbacks.ModelCheckpoint(folder / file, **options)
        model.fit(_ONES, _ZEROS, epochs=3, callbacks=[callback], verbose=0)

    return write


def _checkpoint(manage: bool = False, **parts: Any) -> Callable[..., None]:
    def write(model: keras.Model, folder: pathlib.Path) -> None:
        model.fit(_ONES, _ZEROS, epochs=3, verbose=0)
        checkpoint = tf.train.Checkpoint(
            **{name: find(model) for name, find in parts.items()}
        )
        if manage:
            tf.train.CheckpointManager(checkpoint, folder, 1).save()
        else:
            checkpoint.save(str(folder / "mine"))

    return write


def _itself(model: keras.Model) -> keras.Model:
    return model


def _its_optimizer(model: keras.Model) -> keras.Optimizer:
    return model.optimizer


@pytest.mark.compat
@pytest.mark.parametrize(
    "write",
    [
        _callback("e-{epoch}.keras"),
        _callback("last.keras"),
        _callback("last.weights.h5", save_weights_only=True),
        _checkpoint(manage=True, model=_itself, optimizer=_its_optimizer),
        _checkpoint(root=_itself, optimizer=_its_optimizer),
        _checkpoint(net=_itself, opt=_its_optimizer),
    ],
    ids=[
        *("keras by epoch", "keras overwritten", "weights overwritten"),
        *("manager", "model as root", "names of one's own"),
    ],
)
def test_evaluates_what_was_trained(
    write: Callable[..., None], tmp_path: pathlib.Path
) -> None:
    trained = _make_model(3)
    write(trained, tmp_path)
    expected = trained.evaluate(_ONES, _ZEROS, verbose=0, return_dict=True)
    evaluator = _make_evaluator(tmp_path, max_evaluations=1)
    (evaluation,) = evaluator.start()
    assert evaluation.metrics == pytest.approx(expected)
    assert evaluation.step == 3 * _STEPS_PER_NUMBER + 3
    for ours, its in zip(evaluator.model.weights, trained.weights, strict=True):
        np.testing.assert_array_equal(ours, its)


def test_without_a_counter_the_name_gives_the_step(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    # As a loop of one's own saves it, whose optimizer is elsewhere.
    trained = keras.Sequential([keras.layers.Dense(1)])
    trained.build([None, 1])
    trained.set_weights(_make_model(2).get_weights())
    tf.train.Checkpoint(model=trained).write(str(tmp_path / "c-7"))
    (evaluation,) = _make_evaluator(tmp_path, max_evaluations=7).start()
    assert (evaluation.step, evaluation.metrics["mae"]) == (7, 4.0)
    assert "step 7 is shown" in caplog.text


def test_a_model_that_is_built_by_its_first_batch(
    tmp_path: pathlib.Path,
) -> None:
    _save(tmp_path, 2)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse", metrics=["mae"])
    evaluator = _make_evaluator(tmp_path, model=model, max_evaluations=1)
    assert _what(evaluator.start()) == [_expected(2)]


class _Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return _ONES[:2], _ZEROS[:2]


def _make_dataset(context: Any = None) -> tf.data.Dataset:
    assert context is None or context.num_input_pipelines == 1
    return tf.data.Dataset.from_tensor_slices((_ONES, _ZEROS)).batch(2)


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ((_ONES, _ZEROS, _ONES[:, 0]), {"batch_size": 2}),
        (_make_dataset().repeat(), {"steps": 3}),
        (tfps.DatasetCreator(_make_dataset), {}),
        (_Batches(), {}),
    ],
    ids=["arrays", "dataset", "DatasetCreator", "PyDataset"],
)
def test_data_of_every_kind(
    data: Any, options: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    numbers: list[int] = []

    class Watch(keras.callbacks.Callback):
        def on_test_begin(self, logs: Any = None) -> None:
            numbers.append(0)

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            numbers[-1] += 1

        def on_test_end(self, logs: Any = None) -> None:
            _save(tmp_path, 2)

    _save(tmp_path, 1)
    evaluator = _make_evaluator(
        tmp_path, data=data, callbacks=[Watch()], max_evaluations=2, **options
    )
    assert _what(evaluator.start()) == [_expected(1), _expected(2)]
    assert numbers == [3, 3]


def _events(folder: pathlib.Path) -> Iterator[tuple[str, int, float]]:
    for path in folder.glob("events.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                yield (
                    value.tag,
                    event.step,
                    float(tf.make_ndarray(value.tensor)),
                )


@pytest.mark.compat
# As TensorFlow's reader of summaries says of itself.
@pytest.mark.filterwarnings("ignore:.*tf_record_iterator:DeprecationWarning")
@pytest.mark.parametrize("by_callback", [False, True])
def test_tensorboard_gets_each_metric_at_the_step_of_the_training(
    by_callback: bool, tmp_path: pathlib.Path
) -> None:
    logs, folder = tmp_path / "logs", tmp_path / "c"
    seen: list[Any] = []

    class Watch(keras.callbacks.Callback):
        def on_test_begin(self, logs_of_batch: Any = None) -> None:
            seen.append(sorted(_events(logs / "validation")))
            _save(folder, 2)

    callbacks = [Watch()]
    if by_callback:
        pytest.importorskip("tensorboard")
        callbacks.append(keras.callbacks.TensorBoard(logs))
    _save(folder, 1)
    _make_evaluator(
        folder,
        log_dir=None if by_callback else logs,
        callbacks=callbacks,
        max_evaluations=2,
    ).start()
    seen.append(sorted(_events(logs / "validation")))
    loss, mae = "evaluation_loss_vs_iterations", "evaluation_mae_vs_iterations"
    assert seen == [
        [],
        [(loss, 100, 4.0), (mae, 100, 2.0)],
        [(loss, 100, 4.0), (loss, 200, 16.0), (mae, 100, 2.0), (mae, 200, 4.0)],
    ]
    # One file, however many evaluations.
    assert len(list((logs / "validation").iterdir())) == 1


def _damage(path: str, how: str) -> Callable[[], None]:
    """Damages a checkpoint; returns what repairs it."""
    file = path if os.path.exists(path) else f"{path}.data-00000-of-00001"
    backup = f"{file}.backup"
    if how == "deleted":
        # The index of TensorFlow's stays, and promises what is not there.
        os.rename(file, backup)
    else:
        shutil.copyfile(file, backup)
        with open(file, "rb+") as damaged:
            if how == "truncated":
                damaged.truncate(os.path.getsize(file) // 2)
            else:
                size = os.path.getsize(file)
                damaged.seek(size // 2 if file == path else 0)
                damaged.write(b"\x55" * min(8, size))

    def repair() -> None:
        os.replace(backup, file)
        if file != path:
            os.utime(f"{path}.index")

    return repair


@pytest.mark.parametrize(
    ("form", "how"),
    [
        *itertools.product(_FORMS, ["truncated", "deleted"]),
        # The checksums of the others tell.
        ("ckpt-{}", "overwritten"),
    ],
)
def test_what_cannot_be_read_is_left_out_and_the_next_one_taken(
    form: str,
    how: str,
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _save(tmp_path, 1, form)
    repair = _damage(_save(tmp_path, 2, form), how)

    class Repair(keras.callbacks.Callback):
        """Once the older one is evaluated in the stead of the younger."""

        def on_test_end(self, logs: Any = None) -> None:
            if logs["mae"] == 2.0:
                repair()

    evaluator = _make_evaluator(
        tmp_path,
        callbacks=[Repair()],
        load_timeout_seconds=0.0,
        max_evaluations=2,
    )
    assert _what(evaluator.start()) == [_expected(1), _expected(2)]
    left_out = [
        record
        for record in caplog.records
        if "is skipped" in record.message and record.levelname == "WARNING"
    ]
    # What is gone as a whole is not even seen.
    is_seen = how != "deleted" or form == "ckpt-{}"
    assert len(left_out) == is_seen


@pytest.mark.parametrize("form", ["last.keras", "last.weights.h5", "last"])
def test_a_file_that_is_written_all_the_time_is_read_whole_or_not_at_all(
    form: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "c"
    target.mkdir()
    sources = [tmp_path / str(number) for number in range(1, 4)]
    for number, source in enumerate(sources, 1):
        _save(source, number, form)
    looks, evaluated = threading.Semaphore(0), threading.Semaphore(0)
    find = CheckpointFolder.find

    def find_and_tell(self: CheckpointFolder) -> list[Checkpoint]:
        looks.release()
        return find(self)

    monkeypatch.setattr(CheckpointFolder, "find", find_and_tell)

    class Tell(keras.callbacks.Callback):
        def on_test_end(self, logs: Any = None) -> None:
            evaluated.release()

    evaluator = _make_evaluator(
        target, callbacks=[Tell()], load_timeout_seconds=60.0
    )

    def write_in_place() -> None:
        for source in sources:
            # Of TensorFlow's files, the index is written last.
            for file in sorted(source.iterdir()):
                data = file.read_bytes()
                size = 1 + len(data) // 6
                with open(target / file.name, "wb", buffering=0) as out:
                    for start in range(0, len(data), size):
                        out.write(data[start : start + size])
                        # The evaluator sees it, takes it for settled and
                        # tries to load it.
                        for _ in range(4):
                            while looks.acquire(blocking=False):
                                pass
                            looks.acquire(timeout=20)
            evaluated.acquire(timeout=20)
        evaluator.stop()

    writer = threading.Thread(target=write_in_place)
    writer.start()
    evaluations = _what(evaluator.start())
    writer.join()
    assert evaluations == [_expected(number) for number in (1, 2, 3)]


@pytest.mark.parametrize("form", _FORMS[:2])
def test_the_training_may_write_and_delete_what_is_being_read(
    form: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _save(tmp_path, 1, form)
    evaluator = _make_evaluator(tmp_path, max_evaluations=1)
    load = evaluator.model.load_weights
    # HDF5 refuses to write a file that anybody has open for reading.
    turns = [lambda: _save(tmp_path, 1, form), lambda: os.unlink(path)]

    def load_weights(source: Any, **options: Any) -> None:
        with h5py.File(source, "r"):
            turns.pop(0)()
        load(source, **options)

    monkeypatch.setattr(evaluator.model, "load_weights", load_weights)
    # The first reading counts for nothing, the second is of a whole copy.
    assert _what(evaluator.start()) == [_expected(1)]
    assert not turns
    assert not os.path.exists(path)


def test_no_state_of_a_file_of_weights_being_written_passes_for_whole(
    tmp_path: pathlib.Path,
) -> None:
    inputs = keras.Input([400])
    dense = keras.layers.Dense(300)(inputs)
    written = keras.Model(inputs, keras.layers.Dense(200)(dense))
    path, copy = tmp_path / "w.weights.h5", tmp_path / "copy.weights.h5"
    read = keras.models.clone_model(written)
    states: list[str] = []
    write = h5py.Group.__setitem__

    def write_and_look(self: Any, key: Any, value: Any) -> None:
        write(self, key, value)
        shutil.copyfile(path, copy)
        try:
            read.load_weights(copy)
        except (OSError, ValueError, KeyError) as error:
            states.append(type(error).__name__)
        else:
            states.append("whole")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(h5py.Group, "__setitem__", write_and_look)
        written.save_weights(path)
    assert len(states) >= 4
    assert "whole" not in states
    read.load_weights(path)


def test_the_best_model_is_kept_also_over_a_restart(
    tmp_path: pathlib.Path,
) -> None:
    folder, best = tmp_path / "c", tmp_path / "best" / "best.keras"
    options: dict[str, Any] = {
        "export_best": tfps.ExportBest(best),
        "max_evaluations": 1,
    }

    def kept() -> float:
        return keras.models.load_model(best, compile=False).weights[0].numpy()

    for number, expected in [(3, 3), (2, 2), (4, 2), (1, 1)]:
        shutil.rmtree(folder, ignore_errors=True)
        _save(folder, number)
        _make_evaluator(folder, **options).start()
        assert kept() == expected
    assert sorted(each.name for each in best.parent.iterdir()) == [
        "best.keras",
        "best.keras.json",
    ]
    best.with_name("best.keras.json").write_text("{")
    _save(folder, 5)
    _make_evaluator(folder, **options).start()
    assert kept() == 5


def test_refuses_to_export_what_it_does_not_measure(
    tmp_path: pathlib.Path,
) -> None:
    _save(tmp_path, 1)
    export = tfps.ExportBest(tmp_path / "best" / "b.keras", "auc", "max")
    evaluator = _make_evaluator(tmp_path, export_best=export)
    with pytest.raises(errors.InputError, match="'loss', 'mae'"):
        evaluator.start()


def test_stops_after_a_step(tmp_path: pathlib.Path) -> None:
    class Write(keras.callbacks.Callback):
        def on_test_begin(self, logs: Any = None) -> None:
            _save(tmp_path, next(numbers))

    numbers = itertools.count(1)
    _save(tmp_path, 0)
    evaluator = _make_evaluator(
        tmp_path, callbacks=[Write()], stop_after_step=150
    )
    assert [each.step for each in evaluator.start()] == [0, 100, 200]


def test_prints_what_it_finds(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _save(tmp_path, 1)
    export = tfps.ExportBest(tmp_path / "best" / "b.keras")
    _make_evaluator(tmp_path, max_evaluations=1, export_best=export).start()
    assert capsys.readouterr().out == (
        "e-1.keras (step 100): loss: 4, mae: 2 - the best so far\n"
        "The evaluator ends: max_evaluations=1 is reached.\n"
    )


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_says_what_it_has_waited_for(
    scheme: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = f"{scheme}{tmp_path / 'c'}"
    options = {"no_checkpoint_timeout_seconds": 0.05}
    with pytest.raises(errors.CheckpointNotFoundError) as caught:
        _make_evaluator(folder, **options).start()  # type: ignore[arg-type]
    assert "*.keras, *.weights.h5, *.index" in str(caught.value)
    assert "checkpoint_dir=" in str(caught.value)
    # That of another model.
    other = keras.Sequential([keras.layers.Dense(2)])
    other.build([None, 1])
    (tmp_path / "c").mkdir()
    other.save(tmp_path / "c" / "other.keras")
    options["no_checkpoint_timeout_seconds"] = 2.0
    caplog.set_level(logging.INFO)
    with pytest.raises(errors.CheckpointNotFoundError) as caught:
        _make_evaluator(folder, **options).start()  # type: ignore[arg-type]
    assert isinstance(caught.value.__cause__, ValueError)
    assert "it is tried again" in caplog.text
    # And a good one.
    _save(tmp_path / "c", 2)
    evaluator = _make_evaluator(folder, max_evaluations=1)  # type: ignore[arg-type]
    assert _what(evaluator.start()) == [_expected(2)]


@pytest.mark.parametrize("form", _FORMS)
def test_a_model_that_would_get_only_some_of_its_weights(
    form: str, tmp_path: pathlib.Path
) -> None:
    _save(tmp_path, 1, form)
    larger = keras.Sequential([keras.layers.Dense(1), keras.layers.Dense(1)])
    larger.compile(loss="mse")
    larger.build([None, 1])
    evaluator = _make_evaluator(
        tmp_path, model=larger, no_checkpoint_timeout_seconds=0.5
    )
    with pytest.raises(errors.CheckpointNotFoundError) as caught:
        evaluator.start()
    assert isinstance(caught.value.__cause__, ValueError)


def test_ctrl_c_ends_it(tmp_path: pathlib.Path) -> None:
    evaluator = _make_evaluator(
        tmp_path,
        poll_interval_seconds=50.0,
        no_checkpoint_timeout_seconds=None,
    )
    # A shell that starts the tests in the background has them ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            evaluator.start()
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)


def test_can_be_stopped_from_elsewhere(tmp_path: pathlib.Path) -> None:
    evaluator = _make_evaluator(tmp_path, no_checkpoint_timeout_seconds=None)
    timer = threading.Timer(0.1, evaluator.stop)
    timer.start()
    assert evaluator.start() == []
    timer.join()


def test_refuses_what_cannot_work(tmp_path: pathlib.Path) -> None:
    uncompiled = keras.Sequential([keras.layers.Dense(1)])
    for options, received in (
        ({"model": uncompiled}, "not compiled"),
        ({"data": (each for each in "ab")}, "generator"),
        ({"data": (1, 2, 3, 4)}, "4 parts"),
        ({"max_evaluations": 0}, "max_evaluations=0"),
        (
            {"export_best": tfps.ExportBest(tmp_path / "b.keras")},
            "another folder",
        ),
    ):
        with pytest.raises(errors.InputError, match=received):
            _make_evaluator(tmp_path, **options)
