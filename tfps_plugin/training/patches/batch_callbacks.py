"""Finds callbacks that use the logs of batches.

The chief fetches results of steps only as often as they are shown.
"""

from typing import Any

import keras

_HOOKS = ("on_batch_end", "on_train_batch_end", "on_test_batch_end")
# A callback of this package that does not use them either.
_OF_EXPORTS = "tfps_plugin.training.exports.export_callback"
# Keras's own callbacks that run for every batch, but never use its logs.
# By name, because not every version has all of them.
_ONLY_COUNT = ("BackupAndRestore", "ProgbarLogger", "SwapEMAWeights")


def looks_at_batches(callbacks: Any) -> bool:
    """Returns whether any callback uses the logs of batches.

    Args:
        callbacks: As given to `fit`: None, one, several, or Keras's own list.
    """
    if callbacks is None:
        return False
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    if not isinstance(callbacks, list | tuple):
        callbacks = [callbacks]
    return any(
        _has_batch_hook(callback) and not _only_counts_batches(callback)
        for callback in callbacks
        if isinstance(callback, keras.callbacks.Callback)
    )


def _has_batch_hook(callback: keras.callbacks.Callback) -> bool:
    # Checks the object: keras.callbacks.LambdaCallback stores its hooks there.
    return any(
        getattr(getattr(callback, hook), "__func__", None)
        is not getattr(keras.callbacks.Callback, hook)
        for hook in _HOOKS
    )


def _only_counts_batches(callback: keras.callbacks.Callback) -> bool:
    kind = type(callback)
    if kind.__module__ == _OF_EXPORTS:
        return True
    if kind.__module__.partition(".")[0] != "keras":
        return False
    if kind.__name__ in _ONLY_COUNT:
        return True
    if kind.__name__ in ("ModelCheckpoint", "OrbaxCheckpoint"):
        return bool(callback.save_freq == "epoch")
    return kind is keras.callbacks.TensorBoard and (
        callback.update_freq == "epoch"
    )
