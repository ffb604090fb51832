"""The public function `tfps.export_changes`."""

import os
import threading
import weakref
from typing import Any

from tfps_plugin.training.exports.exporter import Exporter
from tfps_plugin.training.exports.exporter import WrittenExport

# What was exported of each model, by folder; it goes with the model.
_exporters: weakref.WeakKeyDictionary[Any, dict[str, Exporter]] = (
    weakref.WeakKeyDictionary()
)
_lock = threading.Lock()


def export_changes(
    model: Any,
    directory: Any,
    *,
    step: int | None = None,
    compact_at: float = 0.5,
) -> WrittenExport | None:
    """Exports the rows of tables that have changed since the last export.

    ```python
    tfps.export_changes(model, "exported")
    ```

    The first export has whole tables, and later ones the rows that have
    changed. `tfps.serving.Tables` reads them in a process that needs NumPy
    only. In `fit`, `tfps.callbacks.ExportChanges` calls this every few minutes.

    Tables are those of `tfps.layers.DynamicEmbedding`, by id, and of
    `keras.layers.Embedding` and `tfps.layers.DistributedEmbedding`, by row. All
    other weights are exported whole each time.

    Threading: one thread at a time.

    Args:
        model: A built Keras model, on a cluster or not.
        directory: Folder of the exports of this model, on a file system that
            this machine has mounted.
        step: Step to tell readers; by default, that of the optimizer.
        compact_at: Size of all changes since the last whole tables, as a share
            of these, at which whole tables are exported again.

    Returns:
        What was exported; None if nothing has changed.

    Raises:
        TypeError: If `step` is no whole number.
        ValueError: If an argument is not one of those above, or the model has
            no built table, or two with the same name.
        UnsupportedError: If an embedding has LoRA or is quantized.
        ExportUnreadableError: If the manifest in the folder is damaged, or
            another program exports to it.
        OSError: If a file cannot be written.
        tf.errors.OpError: If a parameter server does not answer, or is
            restored each time that its values are read.
        ParameterServerLostError: If one is lost that cannot be restored.
    """
    exporter = _exporter(model, directory, compact_at)
    return exporter.write(exporter.take(model, step))


def _exporter(model: Any, directory: Any, compact_at: float) -> Exporter:
    exporter = Exporter(directory, compact_at)
    with _lock:
        of_model = _exporters.setdefault(model, {})
        path = os.path.abspath(os.fspath(directory))
        known = of_model.setdefault(path, exporter)
        known.compact_at = compact_at
        return known
