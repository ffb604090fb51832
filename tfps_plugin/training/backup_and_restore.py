"""`tfps.callbacks.BackupAndRestore`: backups from which `fit` resumes."""

import dataclasses
import json
import logging
import os
from typing import Any
from typing import Literal

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.recovery.checkpoints.checkpoint import Checkpoint
from tfps_plugin.recovery.checkpoints.checkpoint_manager import (
    CheckpointManager,
)
from tfps_plugin.training.patches import running_call
from tfps_plugin.training.patches.running_call import Place

_logger = logging.getLogger("tfps_plugin.training")

# The newest backup and the one before it, which is always complete.
_MAX_TO_KEEP = 2


class _Position(tf.train.experimental.PythonState):
    """Position of the training; part of the checkpoint.

    Attributes:
        epoch: Number of the current epoch, from 0.
        batch: Number of its batches that were trained.
        place: Epoch, batch and splits that were read, at the last backup.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.batch = 0
        self.place = Place(0, 0)

    def serialize(self) -> str:
        """Returns the place as JSON."""
        return json.dumps(dataclasses.asdict(self.place))

    def deserialize(self, string_value: str | bytes) -> None:
        """Sets the place from JSON."""
        place = json.loads(string_value)
        place["done_splits"] = tuple(place["done_splits"])
        self.place = Place(**place)
        self.epoch, self.batch = self.place.epoch, self.place.step


class BackupAndRestore(keras.callbacks.Callback):
    """Callback that lets `fit` resume after any process has died.

    ```python
    model.fit(..., callbacks=[tfps.callbacks.BackupAndRestore("/backup")])
    ```

    It does what `keras.callbacks.BackupAndRestore` does. In addition:

    - it writes a `tfps.Checkpoint`: every parameter server writes its own
      rows while training continues; optimizer, metrics and random seeds are
      included;
    - a restarted program resumes inside the epoch, after the last batch that
      was backed up;
    - a parameter server that is lost is restored from the newest backup, in
      the same chief. The first backup is made before the first batch.

    With `steps_per_epoch`, and with input that the chief reads, the steps of
    the epoch that were backed up are not run again. If an epoch is the whole
    input that workers read (`DatasetCreator` without steps), splits that were
    read to the end are not read again; those that were being read are read
    again or left out, depending on `visitation`.

    Threading: Keras calls it on the thread of `fit`.
    """

    def __init__(
        self,
        backup_dir: Any,
        save_freq: Literal["epoch"] | int = "epoch",
        delete_checkpoint: bool = True,
        *,
        full_every: int = 1,
    ) -> None:
        """Creates the callback; writes nothing yet.

        Args:
            backup_dir: Folder of the backups, for one training at a time, on
                any file system of `tf.io.gfile`.
            save_freq: "epoch" to back up after every epoch; or a number of
                batches between two backups.
            delete_checkpoint: Whether to delete the backups when `fit` has
                completed.
            full_every: Interval of full backups; see
                `tfps.CheckpointManager`.

        Raises:
            ValueError: If `backup_dir` is empty, `full_every` is less than 1,
                or `save_freq` is neither "epoch" nor a positive integer.
        """
        super().__init__()
        if not backup_dir:
            raise ValueError(
                "backup_dir must name a folder. Received: "
                f"backup_dir={backup_dir!r}"
            )
        if full_every < 1:
            raise ValueError(
                "full_every must be at least 1, which makes every backup a "
                f"full one. Received: full_every={full_every!r}"
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
        # Values to assign after Keras has reset the metrics, as it does at
        # the beginning of every epoch, even of a resumed one.
        self._metrics: list[tuple[Any, np.ndarray]] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores the last backup, or makes the first."""
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
            "Training resumes from %s: epoch %d, batch %d.",
            restored,
            self._position.epoch + 1,
            self._position.batch,
        )
        keras_compat.set_initial_epoch(model, self._position.epoch)
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
            "Epoch %d starts from its beginning, with the weights of the "
            "backup, because its input cannot resume or has changed.",
            self._position.epoch + 1,
        )
        self._position.batch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Restores the metrics of a resumed epoch."""
        self._position.epoch = epoch
        for variable, value in self._metrics:
            variable.assign(value)
        self._metrics = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Makes a backup if one is due."""
        if self.save_freq == "epoch":
            return
        # With several steps in a call, Keras reports only the last one.
        self._batches_since_backup += batch + 1 - self._position.batch
        self._position.batch = batch + 1
        if self._batches_since_backup >= int(self.save_freq):
            self._back_up()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Makes a backup if one is due."""
        self._position.epoch = epoch + 1
        self._position.batch = 0
        if self.save_freq == "epoch":
            self._back_up()

    def on_train_end(self, logs: Any = None) -> None:
        """Waits for the last backup, or deletes all backups."""
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
            # The trained batches are those that were read only after a sync.
            call.sync()
            position.place = call.place(position.epoch, position.batch)
        self._manager.save()
