"""The input of one fit or evaluate, on all workers."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.inputs.dataset_creator import DatasetCreator
from tfps_plugin.training import packing


class EpochInput:
    """What the epoch iterator yields and the step dispatcher takes.

    Attributes:
        per_worker_iterator: Each worker's own iterator.
        counter: Steps asked for and handed out in this epoch.
        show_all_batches: Whether a callback looks at the logs of batches.
    """

    def __init__(
        self,
        per_worker_dataset: Any,
        counter: packing.StepCounter,
        *,
        show_all_batches: bool,
    ) -> None:
        """Makes iterators; nothing is read yet.

        Args:
            per_worker_dataset: From `create_per_worker_dataset`.
            counter: Counts the steps of an epoch.
            show_all_batches: Whether a callback looks at the logs of batches.
        """
        self.per_worker_iterator = iter(per_worker_dataset)
        self.counter = counter
        self.show_all_batches = show_all_batches
        self._element_spec = per_worker_dataset.element_spec
        self._sync: Callable[[EpochInput], None] | None = None

    def __iter__(self) -> "EpochInput":
        """Itself: every worker's iterator goes on from epoch to epoch."""
        return self

    def __next__(self) -> Any:
        """Specs of a batch: Keras builds the model from them before it trains.

        No data is read for that.
        """
        return self._element_spec

    @property
    def is_first_request(self) -> bool:
        """Whether nothing was asked for in this epoch."""
        return self.counter.asked == 0

    def on_sync(self, sync: Callable[["EpochInput"], None]) -> None:
        """Says what finishes the steps of this epoch."""
        self._sync = sync

    def sync(self) -> None:
        """Waits until every step that was asked for has run."""
        if self._sync is not None:
            self._sync(self)


class ClusterEpochIterator(keras_compat.TFEpochIterator):
    """Keras's epoch iterator over input that the workers read themselves."""

    def __init__(
        self,
        distribute_strategy: Any,
        x: Any,
        *,
        steps_per_epoch: int | None = None,
        steps_per_execution: int = 1,
        show_all_batches: bool = False,
        **keras_arguments: Any,
    ) -> None:
        """Prepares the input; nothing runs on workers yet.

        Args:
            distribute_strategy: A `tfps.ParameterServerStrategy`.
            x: A `tfps.DatasetCreator` or a `tf.data.Dataset`.
            steps_per_epoch: Batches of one epoch, over all workers.
            steps_per_execution: As given to `compile`.
            show_all_batches: Whether a callback looks at the logs of batches.
            **keras_arguments: The rest of what Keras's own iterator takes.

        Raises:
            InputError: If the number of steps is not given, or the input
                cannot be read by workers.
        """
        keras_compat.EpochIterator.__init__(
            self,
            x=x,
            steps_per_epoch=steps_per_epoch,
            steps_per_execution=steps_per_execution,
            **keras_arguments,
        )
        if not self.steps_per_epoch:
            raise errors.InputError(
                "Every worker reads its own input, so the number of batches "
                "of an epoch has to be given: steps_per_epoch for fit(), "
                "validation_steps for its validation_data, steps for "
                f"evaluate(). Received: steps={steps_per_epoch}, input "
                f"{type(x).__name__}"
            )
        # Several readers follow one another in one epoch: unlike a local
        # dataset's, their number of batches is what was asked for.
        self._num_batches = None
        self._coordinator = ClusterCoordinator(distribute_strategy)
        self._show_all_batches = show_all_batches
        self._dataset = self._coordinator.create_per_worker_dataset(
            self._dataset_source(x)
        )
        self._counter = packing.StepCounter(
            steps_per_epoch=self.steps_per_epoch,
            steps_per_request=steps_per_execution,
            steps_per_closure=self._steps_per_closure(distribute_strategy),
        )
        self._epoch_input: EpochInput | None = None

    def _dataset_source(self, x: Any) -> Any:
        if isinstance(x, DatasetCreator):
            return x.build
        if isinstance(x, tf.data.Dataset):
            # With class weights, if there are any.
            return self.data_adapter.get_tf_dataset()
        raise errors.InputError(
            "Workers read their own input: give fit() a tfps.DatasetCreator, "
            "or a tf.data.Dataset that each of them reads in full. Received: "
            f"x of type {type(x).__name__}. For arrays: tfps.DatasetCreator("
            "lambda context: tf.data.Dataset.from_tensor_slices((x, y))"
            ".shard(context.num_input_pipelines, context.input_pipeline_id)"
            ".repeat().batch(batch_size))"
        )

    def _steps_per_closure(self, strategy: Any) -> int:
        if self.steps_per_execution > 1:
            return self.steps_per_execution
        if strategy.steps_per_closure is not None:
            return strategy.steps_per_closure
        return packing.choose_steps_per_closure(
            self.steps_per_epoch, self._coordinator.num_lanes
        )

    def reset(self) -> None:
        """Begins anew, as Keras does before each fit or evaluate."""
        super().reset()
        self._num_batches = None

    def __iter__(self) -> Any:
        """Begins an epoch."""
        self._counter.begin_epoch()
        return super().__iter__()

    def _get_iterator(self) -> EpochInput:
        self._epoch_input = EpochInput(
            self._dataset,
            self._counter,
            show_all_batches=self._show_all_batches,
        )
        return self._epoch_input

    def tf_sync(self) -> None:
        """Waits until every step that was asked for has run."""
        if self._epoch_input is not None:
            self._epoch_input.sync()
