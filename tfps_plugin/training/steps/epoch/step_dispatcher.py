"""The function that Keras calls for every step."""

from collections.abc import Callable
from typing import Any

import keras

from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.training.steps.epoch.cluster_input import ClusterInput
from tfps_plugin.training.steps.metrics.progress_logs import ProgressLogs
from tfps_plugin.training.steps.traced.eager_mode import runs_eagerly
from tfps_plugin.training.steps.traced.step_functions import StepFunctions


class StepDispatcher:
    """The `train_function` or `test_function` of models on the cluster.

    Keras calls it once for every batch (every `steps_per_execution` batches)
    and continues at once; workers run the steps.

    Input that does not come from our epoch iterator, such as the single batch
    of `train_on_batch`, goes to Keras's own function, which runs on the chief.

    Attributes:
        runs_eagerly: Whether Keras's own function was made to run eagerly.

    Threading: only the thread that runs `fit` uses it.
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
            counts_exactly: Whether metrics count every example of completed
                calls exactly once; else workers count, which is cheaper.
            on_order_needed: Receives the type of a batch, before the first
                step, if steps must follow one another.
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
        """Refuses a step that must see the input in order.

        Raises:
            UnsupportedError: If the step must.
        """
        self._functions.settle_states(batch_spec)
        self._functions.states.require_any_order()

    def __call__(self, iterator: Any) -> Any:
        """Requests the next steps.

        Args:
            iterator: The value that the epoch iterator yields.

        Returns:
            The logs: a dictionary that is updated as steps end.

        Raises:
            StopIteration: If there is no input for a step.
            BaseException: The error that an earlier step raised.
        """
        if not isinstance(iterator, ClusterInput):
            self._coordinator.safe_points.reach_between_steps()
            return self._keras_function(iterator)
        run = iterator.run
        if run is None:
            self._progress = ProgressLogs(
                self._coordinator.num_lanes,
                show_all=iterator.show_all_batches,
            )
            run = iterator.begin(self._functions, self._progress)
            if self._functions.states.in_order:
                self._on_order_needed(iterator.batch_spec)
        run.reach_safe_point()
        run.request(iterator.steps_of_request())
        if iterator.show_all_batches and not run.done:
            # Callbacks of the first batches expect the names in the logs.
            run.sync()
        return self._progress.logs
