"""Collects the steps that Keras asks for into calls of the workers."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.training.epoch_input import EpochInput
from tfps_plugin.training.progress_logs import ProgressLogs
from tfps_plugin.training.step_function import make_step_function


class StepDispatcher:
    """What `model.train_function` or `model.test_function` is here.

    Keras calls it once for every batch (every `steps_per_execution` batches)
    and goes on at once. Every `steps_per_closure` steps become one closure,
    which any worker runs on its own input.

    Input that does not come from our epoch iterator, such as the single batch
    of `train_on_batch`, goes to Keras's own function, which runs on the chief.

    Threading: used by the thread that runs `fit` alone.
    """

    def __init__(
        self,
        model: keras.Model,
        step: Callable[[Any], Any],
        keras_function: Callable[[Any], Any],
    ) -> None:
        """Creates the dispatcher; traces nothing yet.

        Args:
            model: The model.
            step: Its `train_step` or `test_step`.
            keras_function: Keras's own function of an iterator.
        """
        self._coordinator = ClusterCoordinator(model.distribute_strategy)
        self._function = make_step_function(model, step)
        self._keras_function = keras_function
        self._progress = ProgressLogs(self._coordinator.num_lanes)

    def __call__(self, iterator: Any) -> Any:
        """Asks for one more request of steps.

        Args:
            iterator: What the epoch iterator yields.

        Returns:
            The logs: a dictionary that is brought up to date as steps end.
        """
        if not isinstance(iterator, EpochInput):
            return self._keras_function(iterator)
        if iterator.is_first_request:
            self._progress.clear()
            iterator.on_sync(self._sync)
        for num_steps in iterator.counter.ask():
            self._dispatch(iterator, num_steps)
        return self._progress.logs

    def _dispatch(self, iterator: EpochInput, num_steps: int) -> None:
        result = self._coordinator.schedule(
            self._function,
            args=(iterator.per_worker_iterator, tf.constant(num_steps)),
        )
        self._progress.add(result, show_all=iterator.show_all_batches)

    def _sync(self, iterator: EpochInput) -> None:
        """Runs what was asked for to its end."""
        num_steps = iterator.counter.flush()
        if num_steps:
            self._dispatch(iterator, num_steps)
        self._coordinator.join()
        self._progress.finish()
