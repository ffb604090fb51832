"""`tfps.callbacks.BackupAndRestore`."""

import dataclasses
import json
import logging
import os
from typing import Any
from typing import Literal

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin.recovery.checkpoints.checkpoint import Checkpoint
from tfps_plugin.recovery.checkpoints.checkpoint_manager import (
    CheckpointManager,
)
from tfps_plugin.training.patches import running_call
from tfps_plugin.training.patches.running_call import Place

_logger = logging.getLogger("tfps_plugin")

# The newest and the one before it, which is whole whatever happens.
_MAX_TO_KEEP = 2


class _Position(tf.train.experimental.PythonState):
    """How far training is; part of the checkpoint.

    Attributes:
        epoch: Number of the epoch that goes on, from 0.
        batch: How many batches of it were trained.
        place: The same, and the splits that were read, when a backup was
            taken.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.batch = 0
        self.place = Place(0, 0)

    def serialize(self) -> str:
        """The place as JSON."""
        return json.dumps(dataclasses.asdict(self.place))

    def deserialize(self, string_value: str | bytes) -> None:
        """Takes it from JSON."""
        place = json.loads(string_value)
        place["done_splits"] = tuple(place["done_splits"])
        self.place = Place(**place)
        self.epoch, self.batch = self.place.epoch, self.place.step


class BackupAndRestore(keras.callbacks.Callback):
    """Has `fit` go on where it was, whatever process has died.

    ```python
    model.fit(..., callbacks=[tfps.callbacks.BackupAndRestore("/backup")])
    ```

    As `keras.callbacks.BackupAndRestore`, and:

    - it writes a `tfps.Checkpoint`: every parameter server its own rows, while
      training goes on; optimizer, metrics and random seeds included;
    - a program that starts again goes on inside the epoch, behind the last
      batch that was backed up;
    - a parameter server that is lost is brought back from the newest backup,
      in the same chief. The first backup is made before the first batch.

    With `steps_per_epoch`, and with input that the chief reads, the steps of
    the epoch that were backed up are not asked for again. Where an epoch is
    all that the workers read (`DatasetCreator` without steps), splits that
    were read to their end are not read again; those that were being read are,
    or are left out, as `visitation` says.

    Threading: called by Keras, on the thread of `fit`.
    """

    def __init__(
        self,
        backup_dir: Any,
        save_freq: Literal["epoch"] | int = "epoch",
        delete_checkpoint: bool = True,
        *,
        full_every: int = 1,
    ) -> None:
        """Names the folder.

        Args:
            backup_dir: Where backups are written. One training writes to it
                at a time. Any file system of `tf.io.gfile`.
            save_freq: "epoch": after every epoch; a number: after so many
                batches.
            delete_checkpoint: Whether to delete the backups when `fit` has
                come to its end.
            full_every: Every so many backups one is full; see
                `tfps.CheckpointManager`.

        Raises:
            ValueError: If an argument has no meaning.
        """
        super().__init__()
        if not backup_dir:
            raise ValueError(
                "backup_dir must name a folder. Received: "
                f"backup_dir={backup_dir!r}"
            )
        if full_every < 1:
            raise ValueError(
                "full_every must be at least 1, where every backup is a full "
                f"one. Received: full_every={full_every!r}"
            )
        if save_freq != "epoch" and (
            not isinstance(save_freq, int) or save_freq < 1
        ):
            raise ValueError(
                'save_freq must be "epoch" or a positive number of batches. '
                f"Received: save_freq={save_freq!r}"
            )
        self.backup_dir = os.fspath(backup_dir)
        self.save_freq = save_freq
        self.delete_checkpoint = delete_checkpoint
        self.full_every = full_every
        self._position = _Position()
        self._manager: CheckpointManager | None = None
        self._batches_since_backup = 0
        # Keras resets metrics at the beginning of every epoch, also of one
        # that goes on.
        self._metrics: list[tuple[Any, np.ndarray]] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Goes on from the last backup, or makes the first."""
        model = self.model
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._position = _Position()
        self._manager = CheckpointManager(
            Checkpoint(model=model, position=self._position),
            self.backup_dir,
            _MAX_TO_KEEP,
            full_every=self.full_every,
        )
        restored = self._manager.restore_latest()
        if restored is None:
            self._back_up()
            return
        _logger.info(
            "Training goes on from %s: epoch %d, batch %d.",
            restored,
            self._position.epoch + 1,
            self._position.batch,
        )
        model._initial_epoch = self._position.epoch
        call = running_call.current()
        goes_on = call is not None and call.begin_at(self._position.place)
        if not self._position.batch:
            return
        if goes_on:
            self._metrics = [
                (v, keras.ops.convert_to_numpy(v))
                for v in model.metrics_variables
            ]
            return
        _logger.warning(
            "Epoch %d begins anew, with the weights of the backup: its input "
            "has no place to go on at, or is not what it was.",
            self._position.epoch + 1,
        )
        self._position.batch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Goes on counting where the epoch was broken off."""
        self._position.epoch = epoch
        for variable, value in self._metrics:
            variable.assign(value)
        self._metrics = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Backs up if it is time."""
        if self.save_freq == "epoch":
            return
        # With several steps to a call, Keras tells of the last only.
        self._batches_since_backup += batch + 1 - self._position.batch
        self._position.batch = batch + 1
        if self._batches_since_backup >= int(self.save_freq):
            self._back_up()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Backs up if it is time."""
        self._position.epoch = epoch + 1
        self._position.batch = 0
        if self.save_freq == "epoch":
            self._back_up()

    def on_train_end(self, logs: Any = None) -> None:
        """Waits for the last backup, and deletes all, if they are to be."""
        if self._manager is None:
            return
        if self.delete_checkpoint:
            self._manager.delete_all()
        else:
            self._manager.sync()
        self._manager = None

    def _back_up(self) -> None:
        self._batches_since_backup = 0
        if self._manager is None:
            return
        position = self._position
        position.place = Place(position.epoch, position.batch)
        call = running_call.current()
        if call is not None and position.batch:
            # Only then is what was read what was trained.
            call.sync()
            position.place = call.place(position.epoch, position.batch)
        self._manager.save()
