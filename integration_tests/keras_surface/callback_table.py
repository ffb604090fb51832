"""Every callback of Keras, with its construction and its results.

The input comes from callback_inputs.py.
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

from . import comparison
from . import moments
from . import orbax_checkpoints
from . import tensorboard_events
from .moments import Moment

EPOCHS = 4


class Lockstep(keras.callbacks.Callback):
    """Lets no step begin before the previous one has ended; counts them.

    Attributes:
        iterations: The optimizer's count after each batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.iterations: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.iterations.append(int(self.model.optimizer.iterations))


@dataclasses.dataclass(frozen=True)
class Trained:
    """A fit that has ended, for the inspection of its results.

    Attributes:
        model: The model.
        callback: The callback.
        folder: Folder of the callback's files.
        history: The result of `fit`.
        start: The model before.
        end: The model afterwards.
    """

    model: keras.Model
    callback: Any
    folder: pathlib.Path
    history: dict[str, list[Any]]
    start: Moment
    end: Moment


@dataclasses.dataclass(frozen=True)
class Case:
    """Use of a callback.

    Attributes:
        make: Makes one callback or several, given a folder of its own.
        observe: Returns its results as numbers, strings and arrays.
        observe_ahead: Replaces `observe` if workers run ahead of callbacks: it
            checks observations at batches, and does not return them.
        needs: A package that it needs.
    """

    make: Callable[[pathlib.Path], Any]
    observe: Callable[[Trained], Any]
    observe_ahead: Callable[[Trained], Any] | None = None
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
    return tensorboard_events.observed(
        trained.folder, trained.model, trained.history
    )


def _iterations_ahead(trained: Trained) -> Any:
    for place, iterations in enumerate(trained.callback.iterations):
        moments.assert_at_batch(iterations, place + 1)
    return len(trained.callback.iterations)


def _weights_files_ahead(trained: Trained) -> Any:
    """The names sort the files; one was written after every third batch."""
    paths = sorted(trained.folder.iterdir())
    for place, path in enumerate(paths):
        moment = moments.saved(trained.model, path)
        moments.assert_at_batch(moment.num_steps, 3 * (place + 1))
        moments.assert_on_the_way(moment, trained.start, trained.end)
    return [path.name for path in paths]


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
        """Logs nothing."""


class _Remote(keras.callbacks.RemoteMonitor):
    """Sends to a server of its own, which runs during training."""

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


def _checkpoint(
    name: str,
    observe_ahead: Callable[[Trained], Any] | None = None,
    **arguments: Any,
) -> Case:
    return Case(
        lambda folder: keras.callbacks.ModelCheckpoint(
            str(folder / name), **arguments
        ),
        _files,
        observe_ahead,
    )


def _tensorboard(**arguments: Any) -> Case:
    return Case(
        lambda folder: keras.callbacks.TensorBoard(str(folder), **arguments),
        _events,
        needs="tensorboard",
    )


def _orbax(**arguments: Any) -> Case:
    return Case(
        lambda folder: keras.callbacks.OrbaxCheckpoint(
            str(folder),
            save_on_background=False,
            max_to_keep=None,
            **arguments,
        ),
        lambda trained: orbax_checkpoints.observed(
            trained.folder, trained.model
        ),
        needs="orbax.checkpoint",
    )


def _orbax_ahead(trained: Trained) -> Any:
    """Orbax names checkpoints by the number of batches."""
    paths = orbax_checkpoints.folders(trained.folder)
    for path in paths:
        moment = orbax_checkpoints.restored(trained.model, path)
        moments.assert_at_batch(moment.num_steps, int(path.name))
        moments.assert_on_the_way(moment, trained.start, trained.end)
    return [path.name for path in paths]


# Cases by name: the class, followed by its variant. callbacks_test.py has those
# that need more than one fit.
CASES: dict[str, Case] = {
    "Callback": Case(
        lambda folder: Lockstep(),
        lambda trained: trained.callback.iterations,
        _iterations_ahead,
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
        _weights_files_ahead,
        save_freq=3,
        save_weights_only=True,
    ),
    "ModelCheckpoint, save_best_only": _checkpoint(
        "{epoch:02d}.keras",
        save_best_only=True,
        monitor="val_loss",
        mode="max",
    ),
    "OrbaxCheckpoint": _orbax(),
    "OrbaxCheckpoint, save_freq=3": dataclasses.replace(
        _orbax(save_freq=3), observe_ahead=_orbax_ahead
    ),
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
# Callbacks with tests of their own.
OTHERS = ("BackupAndRestore", "SwapEMAWeights", "TerminateOnNaN")
