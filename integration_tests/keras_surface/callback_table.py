"""Every callback of Keras: how it is made, and what it leaves.

The batches of an epoch are all the same here, so that what a callback sees
after a number of steps is known, whatever the order they ran in.
"""

import csv
import dataclasses
import functools
import http.server
import json
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

from . import comparison
from .bench import BATCH
from .bench import INPUTS
from .bench import Y

STEPS = 8
EPOCHS = 4


def _dataset_fn(context: Any) -> tf.data.Dataset:
    """One batch, for ever."""
    rows = {name: array[:BATCH] for name, array in INPUTS.items()}
    return (
        tf.data.Dataset.from_tensor_slices((rows, Y[:BATCH]))
        .repeat()
        .batch(BATCH)
    )


def _of_creator(is_ours: bool) -> dict[str, Any]:
    given = tfps.DatasetCreator(_dataset_fn) if is_ours else _dataset_fn(None)
    return {"x": given, "steps_per_epoch": STEPS}


def _of_arrays(is_ours: bool) -> dict[str, Any]:
    rows = np.tile(np.arange(BATCH), STEPS)
    return {
        "x": {name: array[rows] for name, array in INPUTS.items()},
        "y": Y[rows],
        "batch_size": BATCH,
        "shuffle": False,
    }


# Arguments of fit(), for our strategy or for one process.
INPUT_KINDS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "DatasetCreator": _of_creator,
    "NumPy": _of_arrays,
}


class Lockstep(keras.callbacks.Callback):
    """Lets no step begin before the one before has ended; counts them.

    Attributes:
        iterations: The optimizer's, after each batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.iterations: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.iterations.append(int(self.model.optimizer.iterations))


class Trained:
    """A fit that has ended, for those who look at what it left."""

    def __init__(
        self,
        model: keras.Model,
        callback: Any,
        folder: pathlib.Path,
        history: dict[str, list[Any]],
    ) -> None:
        self.model = model
        self.callback = callback
        self.folder = folder
        self.history = history


@dataclasses.dataclass(frozen=True)
class Case:
    """How a callback is used.

    Attributes:
        make: Makes it, or several, given a folder of its own.
        observe: What it left, as numbers, strings and arrays.
        arguments: More arguments of `fit`.
        needs: A package that it needs.
    """

    make: Callable[[pathlib.Path], Any]
    observe: Callable[[Trained], Any]
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    needs: str | None = None


def _files(trained: Trained) -> Any:
    return {
        path.name: comparison.contents(path)
        for path in sorted(trained.folder.iterdir())
    }


def _weights(trained: Trained) -> Any:
    return trained.model.get_weights()


def _csv(trained: Trained) -> Any:
    with (trained.folder / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [
        {
            key: float(value)
            if key.startswith("val_") or key == "epoch"
            else None
            for key, value in row.items()
        }
        for row in rows
    ]


def _events(trained: Trained) -> Any:
    """The tags of every run; of those of epochs, the steps as well."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(trained.folder.rglob("*tfevents*")):
        run = str(path.parent.relative_to(trained.folder))
        steps = found.setdefault(run, {})
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                steps.setdefault(value.tag, []).append(event.step)
    return {
        run: {
            # Logs of batches lag: the first of them have none.
            tag: steps[-1:] if tag.startswith("batch_") else steps
            for tag, steps in sorted(tags.items())
        }
        for run, tags in found.items()
    }


class _Received(http.server.BaseHTTPRequestHandler):
    def __init__(self, bodies: list[Any], *arguments: Any) -> None:
        self._bodies = bodies
        super().__init__(*arguments)

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self._bodies.append(json.loads(self.rfile.read(length)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


class _Remote(keras.callbacks.RemoteMonitor):
    """Sends to a server of its own, for as long as training takes."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self._server = http.server.HTTPServer(
            ("127.0.0.1", 0), functools.partial(_Received, self.bodies)
        )
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        port = self._server.server_address[1]
        super().__init__(f"http://127.0.0.1:{port}", send_as_json=True)

    def on_train_end(self, logs: Any = None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _received(trained: Trained) -> Any:
    return [
        {
            key: value if key.startswith("val_") or key == "epoch" else None
            for key, value in body.items()
        }
        for body in trained.callback.bodies
    ]


def _lambda(folder: pathlib.Path) -> Any:
    called: list[tuple[str, int]] = []
    callback = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: called.append(("epoch", epoch)),
        on_train_batch_begin=lambda n, logs: called.append(("begin", n)),
        on_train_batch_end=lambda n, logs: called.append(("end", n)),
        on_train_end=lambda logs: called.append(("train", -1)),
    )
    callback.called = called
    return callback


def _checkpoint(name: str, **arguments: Any) -> Case:
    return Case(
        lambda folder: keras.callbacks.ModelCheckpoint(
            str(folder / name), **arguments
        ),
        _files,
    )


def _tensorboard(**arguments: Any) -> Case:
    return Case(
        lambda folder: keras.callbacks.TensorBoard(str(folder), **arguments),
        _events,
        needs="tensorboard",
    )


def _orbax(folder: pathlib.Path) -> Any:
    return keras.callbacks.OrbaxCheckpoint(
        str(folder), save_freq="epoch", save_on_background=False
    )


def _orbax_steps(trained: Trained) -> Any:
    return sorted(path.name for path in trained.folder.iterdir())


# By name: the class, and after it what is special. callbacks_test.py has
# those that need more than one fit.
CASES: dict[str, Case] = {
    "Callback": Case(
        lambda folder: Lockstep(), lambda trained: trained.callback.iterations
    ),
    "CallbackList": Case(lambda folder: Lockstep(), _weights),
    "CSVLogger": Case(
        lambda folder: keras.callbacks.CSVLogger(str(folder / "log.csv")), _csv
    ),
    "EarlyStopping": Case(
        lambda folder: keras.callbacks.EarlyStopping(
            monitor="val_mse",
            mode="max",
            patience=1,
            restore_best_weights=True,
        ),
        lambda trained: [_weights(trained), trained.callback.stopped_epoch],
    ),
    "History": Case(
        lambda folder: keras.callbacks.History(),
        lambda trained: [
            trained.callback.epoch,
            sorted(trained.callback.history),
        ],
    ),
    "LambdaCallback": Case(_lambda, lambda trained: trained.callback.called),
    "LearningRateScheduler": Case(
        lambda folder: keras.callbacks.LearningRateScheduler(
            lambda epoch, rate: rate * 0.5
        ),
        lambda trained: [_weights(trained), trained.history["learning_rate"]],
    ),
    "ModelCheckpoint": _checkpoint("{epoch:02d}-{val_mse:.3f}.keras"),
    "ModelCheckpoint, save_freq=3": _checkpoint(
        "{epoch:02d}-{batch:02d}.weights.h5",
        save_freq=3,
        save_weights_only=True,
    ),
    "ModelCheckpoint, save_best_only": _checkpoint(
        "{epoch:02d}.keras",
        save_best_only=True,
        monitor="val_loss",
        mode="max",
    ),
    "OrbaxCheckpoint": Case(_orbax, _orbax_steps, needs="orbax.checkpoint"),
    "ProgbarLogger": Case(
        lambda folder: keras.callbacks.ProgbarLogger(),
        lambda trained: [trained.callback.seen, trained.callback.target],
    ),
    "ReduceLROnPlateau": Case(
        lambda folder: keras.callbacks.ReduceLROnPlateau(
            monitor="val_loss", mode="max", factor=0.5, patience=1
        ),
        lambda trained: [_weights(trained), trained.history["learning_rate"]],
    ),
    "RemoteMonitor": Case(
        lambda folder: _Remote(), _received, needs="requests"
    ),
    "TensorBoard": _tensorboard(histogram_freq=1),
    "TensorBoard, update_freq=batch": _tensorboard(update_freq="batch"),
    "TensorBoard, write_images": _tensorboard(
        update_freq=3, write_images=True, histogram_freq=2, write_graph=False
    ),
}
# What has tests of its own.
OTHERS = ("BackupAndRestore", "SwapEMAWeights", "TerminateOnNaN")
