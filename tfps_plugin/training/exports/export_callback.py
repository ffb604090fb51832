"""`tfps.callbacks.ExportChanges`: exports of changes while `fit` trains."""

import logging
import math
import threading
import time
from typing import Any
from typing import Literal

import keras

from tfps_plugin import errors
from tfps_plugin.training.exports.exporter import Exporter
from tfps_plugin.training.exports.exporter import Taken
from tfps_plugin.variables.chief import chief_reads

# For the files of one export, at the end of the training.
_WRITE_TIMEOUT_SECONDS = 1800.0

_logger = logging.getLogger("tfps_plugin.training")


class ExportChanges(keras.callbacks.Callback):
    """Callback that exports what has changed in tables, while `fit` trains.

    ```python
    model.fit(..., callbacks=[tfps.callbacks.ExportChanges("exported")])
    ```

    The rows that have changed are copied between two steps, and written while
    training goes on. The last export, when `fit` ends, has all that it has
    learned. See `tfps.export_changes` for what is exported.

    An export that fails is logged, and the next one has its changes, too. If
    the last one fails, `fit` raises.

    Threading: Keras calls it on the thread of `fit`. Files are written by a
    thread of its own, which ends with its export.
    """

    def __init__(
        self,
        directory: Any,
        minutes: float = 5.0,
        *,
        save_freq: Literal["epoch"] | int | None = None,
        compact_at: float = 0.5,
    ) -> None:
        """Creates the callback; writes nothing yet.

        Args:
            directory: Folder of the exports; see `tfps.export_changes`.
            minutes: Minutes between two exports; 0 for one after each batch.
            save_freq: "epoch" or a number of batches between two exports,
                instead of minutes.
            compact_at: See `tfps.export_changes`.

        Raises:
            ValueError: If an argument is not one of those above.
        """
        super().__init__()
        if (
            isinstance(minutes, bool)
            or not isinstance(minutes, int | float)
            or not 0 <= minutes < math.inf
        ):
            raise ValueError(
                "`minutes` of ExportChanges is expected to be a number of 0 or "
                f"more. Received: minutes={minutes!r}. Give 0 for an export "
                "after each batch."
            )
        if save_freq not in (None, "epoch") and (
            isinstance(save_freq, bool)
            or not isinstance(save_freq, int)
            or save_freq < 1
        ):
            raise ValueError(
                "`save_freq` of ExportChanges is expected to be 'epoch', a "
                "positive number of batches, or None. Received: "
                f"save_freq={save_freq!r}. Leave it out to export by the time, "
                "every `minutes`."
            )
        self._seconds = minutes * 60
        self._save_freq = save_freq
        self._exporter = Exporter(directory, compact_at)
        self._writer: threading.Thread | None = None
        self._last_batch = -1
        self._num_batches = 0
        self._last_time = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins to count time and batches."""
        self._num_batches = 0
        self._last_time = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes that batches are counted anew."""
        self._last_batch = -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Exports if it is due."""
        # With several steps in a call, Keras reports only the last one.
        self._num_batches += batch - self._last_batch
        self._last_batch = batch
        if self._save_freq is None:
            if time.monotonic() - self._last_time >= self._seconds:
                self._export()
        elif self._save_freq != "epoch" and (
            self._num_batches >= int(self._save_freq)
        ):
            self._export()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Exports if it is due."""
        if self._save_freq == "epoch":
            self._export()

    def on_train_end(self, logs: Any = None) -> None:
        """Exports what has changed since the last export.

        Raises:
            TimeoutError: If the export before it does not end.
        """
        if self._writer is not None:
            self._writer.join(_WRITE_TIMEOUT_SECONDS)
            if self._writer.is_alive():
                raise TimeoutError(
                    "An export has been writing its files for more than "
                    f"{_WRITE_TIMEOUT_SECONDS:.0f} s. The last changes are not "
                    "exported. Look at the file system of the folder."
                )
            self._writer = None
        self._exporter.write(self._exporter.take(self.model, None))

    def _export(self) -> None:
        if self._writer is not None and self._writer.is_alive():
            # The next one has the changes, too.
            return
        self._num_batches = 0
        self._last_time = time.monotonic()
        try:
            taken = self._exporter.take(self.model, None)
        except (
            OSError,
            errors.ExportUnreadableError,
            # A disk of a parameter server is full.
            errors.VariableCreationError,
        ) as error:
            _report(error)
            return
        except Exception as error:
            if not chief_reads.is_about_the_cluster(error):
                raise
            _report(error)
            return
        self._writer = threading.Thread(
            target=self._write, args=(taken,), name="tfps-export"
        )
        try:
            self._writer.start()
        except BaseException:
            taken.release()
            raise

    def _write(self, taken: Taken) -> None:
        try:
            self._exporter.write(taken)
        except Exception as error:
            _report(error)


def _report(error: Exception) -> None:
    _logger.error(
        "An export has failed (%s: %s). Training goes on, and the next export "
        "has its changes, too.",
        type(error).__name__,
        error,
    )
