"""What Keras calls for every step."""

from collections.abc import Callable
from typing import Any

import keras

from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.training.steps.epoch.cluster_input import ClusterInput
from tfps_plugin.training.steps.metrics.progress_logs import ProgressLogs
from tfps_plugin.training.steps.traced.eager_mode import runs_eagerly
from tfps_plugin.training.steps.traced.step_functions import StepFunctions


class StepDispatcher:
    """What `model.train_function` or `model.test_function` is here.

    Keras calls it once for every batch (every `steps_per_execution` batches)
    and goes on at once; the steps are run by workers.

    Input that does not come from our epoch iterator, such as the single batch
    of `train_on_batch`, goes to Keras's own function, which runs on the chief.

    Attributes:
        runs_eagerly: Whether Keras's own function was made to run eagerly.

    Threading: used by the thread that runs `fit` alone.
    """

    def __init__(
        self,
        model: keras.Model,
        step: Callable[[Any], Any],
        keras_function: Callable[[Any], Any],
        *,
        counts_exactly: bool,
        on_order_needed: Callable[[Any], None],
    ) -> None:
        """Creates the dispatcher; traces nothing yet.

        Args:
            model: The model.
            step: Its `train_step` or `test_step`.
            keras_function: Keras's own function of an iterator.
            counts_exactly: Whether metrics count what came to its end, each
                example once; else what workers have counted, which is cheaper.
            on_order_needed: Told what one batch looks like, before the first
                step, if steps have to follow one another.
        """
        self.runs_eagerly = runs_eagerly(model)
        self._coordinator = ClusterCoordinator(model.distribute_strategy)
        self._functions = StepFunctions(
            model,
            step,
            self._coordinator,
            counts_exactly=counts_exactly,
        )
        self._keras_function = keras_function
        self._on_order_needed = on_order_needed
        self._progress = ProgressLogs(self._coordinator.num_lanes)

    def require_any_order(self, batch_spec: Any) -> None:
        """Refuses a step that has to see the input in its order.

        Args:
            batch_spec: What one batch looks like.

        Raises:
            UnsupportedError: If it has.
        """
        self._functions.settle_states(batch_spec)
        self._functions.require_any_order()

    def __call__(self, iterator: Any) -> Any:
        """Asks for one more request of steps.

        Args:
            iterator: What the epoch iterator yields.

        Returns:
            The logs: a dictionary that is brought up to date as steps end.

        Raises:
            StopIteration: If there is no input for a step.
            BaseException: What an earlier step raised.
        """
        if not isinstance(iterator, ClusterInput):
            return self._keras_function(iterator)
        run = iterator.run
        if run is None:
            self._progress = ProgressLogs(
                self._coordinator.num_lanes,
                show_all=iterator.show_all_batches,
            )
            run = iterator.begin(self._functions, self._progress)
            if self._functions.is_in_order:
                self._on_order_needed(iterator.batch_spec)
        run.request(iterator.steps_of_request())
        if iterator.show_all_batches and not run.done:
            # Callbacks of the first batches must find the names in the logs.
            run.sync()
        return self._progress.logs
