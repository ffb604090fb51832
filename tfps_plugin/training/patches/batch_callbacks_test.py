"""Tests of the search for callbacks that use the logs of batches."""

from typing import Any

import keras
import pytest

from tfps_plugin.training.patches.batch_callbacks import looks_at_batches


class Own(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


class OwnCheckpoint(keras.callbacks.ModelCheckpoint):
    pass


_LOOK = {
    "own": Own(),
    "lambda": keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: None
    ),
    "test": type(
        "T", (keras.callbacks.Callback,), {"on_test_batch_end": print}
    )(),
    "nan": keras.callbacks.TerminateOnNaN(),
    "checkpoint": keras.callbacks.ModelCheckpoint("m.keras", save_freq=5),
    "tensorboard": keras.callbacks.TensorBoard(update_freq="batch"),
    "subclass": OwnCheckpoint("m.keras"),
}
_DO_NOT = {
    "lambda": keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: None
    ),
    "checkpoint": keras.callbacks.ModelCheckpoint("m.keras"),
    "backup": keras.callbacks.BackupAndRestore("backup", save_freq=5),
    "tensorboard": keras.callbacks.TensorBoard(),
    "stopping": keras.callbacks.EarlyStopping(),
    "averages": keras.callbacks.SwapEMAWeights(),
}


@pytest.mark.parametrize("name", _LOOK)
def test_those_who_look(name: str) -> None:
    assert looks_at_batches(_LOOK[name])
    assert looks_at_batches([*_DO_NOT.values(), _LOOK[name]])
    assert looks_at_batches(keras.callbacks.CallbackList([_LOOK[name]]))


@pytest.mark.parametrize("name", _DO_NOT)
def test_those_who_do_not(name: str) -> None:
    assert not looks_at_batches(_DO_NOT[name])


def test_nobody() -> None:
    assert not looks_at_batches(None)
    assert not looks_at_batches([])
