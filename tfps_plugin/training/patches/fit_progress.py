"""Progress of `fit`, `evaluate` and `predict`, for whoever watches the job."""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.monitoring.state.progress import Progress


class ProgressCallback(keras.callbacks.Callback):
    """Tells the monitor of epochs; `fit` adds it by itself."""

    def __init__(self, progress: Progress) -> None:
        """Begins.

        Args:
            progress: The progress of the model's strategy.
        """
        super().__init__()
        self._progress = progress

    def on_train_begin(self, logs: Any = None) -> None:
        """Tells what begins."""
        self._progress.begin(
            f"fit of {self.model.name}",
            self.params.get("epochs"),
            self.params.get("steps"),
            _example_counter(self.model),
        )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Tells that an epoch begins."""
        self._progress.begin_epoch(epoch + 1)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Tells how it has ended, after validation."""
        self._progress.end_epoch(logs)


def with_progress(callbacks: Any, progress: Progress) -> Any:
    """Returns the callbacks of `fit` with the one that tells of epochs.

    Args:
        callbacks: As given to `fit`: None, one, several, or Keras's own list.
        progress: The progress of the model's strategy.
    """
    own = ProgressCallback(progress)
    if isinstance(callbacks, keras.callbacks.CallbackList):
        # The user's list, perhaps of an earlier `fit`.
        callbacks.callbacks = [
            own,
            *(
                each
                for each in callbacks.callbacks
                if not isinstance(each, ProgressCallback)
            ),
        ]
        own.set_model(callbacks.model)
        own.set_params(callbacks.params)
        return callbacks
    if callbacks is None:
        return [own]
    if not isinstance(callbacks, list | tuple):
        callbacks = [callbacks]
    # The first, so that others see a monitor that knows of the moment.
    return [own, *callbacks]


@contextlib.contextmanager
def telling(
    progress: Progress, method: str, model: Any, steps: Any
) -> Iterator[None]:
    """Tells the monitor that a call runs, until the block ends.

    Args:
        progress: The progress of the model's strategy.
        method: "fit", "evaluate" or "predict".
        model: The model.
        steps: The argument of that name, or None.
    """
    if method != "fit":
        # A callback of `fit` may evaluate; the monitor then shows `fit` again
        # from its next epoch on.
        progress.begin(
            f"{method} of {model.name}",
            None,
            steps,
            _example_counter(model) if method == "evaluate" else None,
        )
    try:
        yield
    finally:
        progress.end()


def _example_counter(model: Any) -> Callable[[], float | None]:
    """Returns a function that counts the examples of the present epoch.

    The mean loss that Keras tracks is weighted by the number of examples, so it
    has counted them: on each lane, and exactly.
    """

    def count() -> float | None:
        tracker = next(
            (
                metric
                for metric in model.metrics
                if metric.name == "loss"
                and isinstance(metric, keras.metrics.Mean)
            ),
            None,
        )
        if tracker is None:
            return None  # a step of the user's own
        try:
            with tensorflow_execution.own_executor():
                return float(tracker.count)
        except (tf.errors.OpError, ValueError, TypeError):
            return None  # a worker was lost, or the metric is not built yet

    return count
