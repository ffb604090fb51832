"""Keras's epoch iterator over input whose steps run on the workers."""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.inputs import input_splits
from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.inputs.dataset_creator import DatasetCreator
from tfps_plugin.inputs.input_splits import InputSplits
from tfps_plugin.inputs.splits import SplitLedger
from tfps_plugin.strategy.replicas import split_batches
from tfps_plugin.training.patches.running_call import Place
from tfps_plugin.training.steps.epoch.chief_batches import EncodedDataset
from tfps_plugin.training.steps.epoch.cluster_input import ChiefInput
from tfps_plugin.training.steps.epoch.cluster_input import ClusterInput
from tfps_plugin.training.steps.epoch.cluster_input import WorkerInput
from tfps_plugin.training.steps.epoch.predict_run import PredictInput
from tfps_plugin.training.steps.epoch.span_run import WorkerReadSpanRun
from tfps_plugin.training.steps.epoch.step_run import StepRun
from tfps_plugin.training.steps.epoch.worker_read_run import WorkerReadRun
from tfps_plugin.training.steps.traced.predict_functions import PredictFunctions
from tfps_plugin.training.steps.tuning import packing


class ClusterEpochIterator(keras_compat.TFEpochIterator):
    """Runs the steps of an epoch on the workers, and tells Keras of each.

    Workers read a `tfps.DatasetCreator`. The chief reads everything else that
    Keras accepts, with Keras's own adapter, and sends it to the workers batch
    by batch: order, shuffling, weights and the number of batches are those of
    a single process.

    Without `steps_per_epoch`, an epoch is the whole input, and its end causes
    no warning.

    Attributes:
        batch_spec: Type of a batch, as the model sees it.
    """

    def __init__(
        self,
        distribute_strategy: Any,
        *,
        class_weight: dict[int, float] | None = None,
        show_all_batches: bool = False,
        **keras_arguments: Any,
    ) -> None:
        """Prepares the input; nothing runs on workers yet.

        Args:
            distribute_strategy: A `tfps.ParameterServerStrategy`.
            class_weight: As in `fit`.
            show_all_batches: Whether a callback uses the logs of batches.
            **keras_arguments: Other arguments of Keras's own iterator.

        Raises:
            InputError: If the input cannot be read by workers.
        """
        keras_compat.EpochIterator.__init__(
            self, class_weight=class_weight, **keras_arguments
        )
        self._coordinator = ClusterCoordinator(distribute_strategy)
        self._show_all_batches = show_all_batches
        self._input: ClusterInput | None = None
        self._run: StepRun | None = None
        self._last_num_steps = 0
        self._first_step = 0
        self._splits: InputSplits | None = None
        # Splits that the next pass need not read.
        self._done_splits: tuple[int, ...] = ()
        self._splits_of_epoch = 0
        if isinstance(self.data_adapter, DatasetCreator):
            self.batch_spec, self._new_input = self._worker_inputs(
                self.data_adapter, class_weight
            )
        else:
            self.batch_spec, self._new_input = self._chief_inputs()

    def _worker_inputs(
        self, creator: DatasetCreator, class_weight: dict[int, float] | None
    ) -> tuple[Any, Callable[[], ClusterInput]]:
        def transform(dataset: Any) -> Any:
            # The step splits batches, of its own accord.
            dataset = split_batches.whole_dataset(dataset)
            if class_weight is None:
                return dataset
            return keras_compat.weighing_classes(class_weight)(dataset)

        splits = input_splits.of_creator(
            creator,
            lambda: self._coordinator.worker_indices,
            self._coordinator.functions.tracing_scope,
            transform,
        )
        self._splits = splits

        def begin_pass() -> SplitLedger:
            done, self._done_splits = self._done_splits, ()
            return splits.begin_pass(done)

        batch_spec = BatchCodec(splits.element_spec).decoded_spec
        return batch_spec, lambda: WorkerInput(
            self._coordinator,
            splits,
            begin_pass=begin_pass,
            num_steps=self.steps_per_epoch or None,
            steps_per_closure=self._steps_per_closure,
        )

    def _chief_inputs(self) -> tuple[Any, Callable[[], ClusterInput]]:
        dataset = EncodedDataset(self.data_adapter.get_tf_dataset())
        return dataset.codec.decoded_spec, lambda: ChiefInput(
            self._coordinator,
            dataset.begin_pass(self._first_step),
            dataset.codec,
            steps_per_closure=self._steps_per_closure,
        )

    def _steps_per_closure(
        self, num_steps: int, most: int, num_lanes: int
    ) -> int:
        return _steps_per_closure(
            self,
            self._coordinator,
            self.num_batches or max(self._last_num_steps, num_steps),
            num_lanes,
            most,
        )

    def steps_of_request(self) -> int:
        """Returns the number of steps of Keras's next call of its function.

        Keras's loop may ask for more than the epoch has, if
        `steps_per_execution` does not divide it.
        """
        most = int(self.steps_per_execution)
        if not self.steps_per_epoch or self._run is None:
            return most
        asked = self._first_step + self._run.asked
        return min(most, self.steps_per_epoch - asked)

    @property
    def _is_what_workers_read(self) -> bool:
        """True if an epoch is the whole input of the workers."""
        return not self.steps_per_epoch and self._splits is not None

    def begin_at(self, place: Place) -> bool:
        """Begins the next epoch in its middle.

        Args:
            place: The position of an earlier program.

        Returns:
            Whether it can: the input must be the same.
        """
        if self._splits is not None and self._is_what_workers_read:
            num_splits = self._splits.go_on(place.epoch)
            if place.step and num_splits != place.num_splits:
                return False
            self._done_splits = place.done_splits
            self._splits_of_epoch = num_splits
        self._first_step = place.step
        return True

    def splits(self) -> tuple[int, list[int]]:
        """Returns the number of splits of the epoch, and the done ones."""
        if isinstance(self._input, WorkerInput) and self._is_what_workers_read:
            return self._input.splits()
        return 0, []

    def _get_iterator(self) -> ClusterInput:
        # Keras asks for the next input before the steps of this one have ended.
        self._input = self._new_input()
        self._input.steps_of_request = self.steps_of_request
        self._input.show_all_batches = self._show_all_batches
        self._input.on_begin = self._begun
        return self._input

    def _begun(self, run: StepRun) -> None:
        self._run = run

    def __iter__(self) -> Any:
        """Begins an epoch."""
        self._run = None
        if self._input is not None:
            self._input.run = None
        return super().__iter__()

    def _enumerate_iterator(self) -> Iterator[tuple[int, int, Any]]:
        if not self._is_what_workers_read:
            for begin, end, iterator in super()._enumerate_iterator():
                if begin >= self._first_step:
                    yield begin, end, iterator
            return
        # The number of steps is unknown until the workers have read the whole
        # input, so Keras is told of the steps that have run.
        self.data_adapter.on_epoch_begin()
        epoch_input = self._get_iterator()
        first = step = self._first_step
        if first and len(self._done_splits) == self._splits_of_epoch:
            # An earlier program has read the whole epoch.
            self._done_splits = ()
            return
        while True:
            yield step, step + self.steps_per_execution - 1, epoch_input
            step += self.steps_per_execution
            run = epoch_input.run
            if isinstance(
                run, WorkerReadRun | WorkerReadSpanRun
            ) and not run.has_more(step - first):
                break
        self.data_adapter.on_epoch_end()

    @contextlib.contextmanager
    def catch_stop_iteration(self) -> Iterator[None]:
        """Ends the epoch: waits for its steps, and warns if input ran short."""
        is_stopped = False
        try:
            yield
        except StopIteration:
            is_stopped = True
        # Even if no step was left to run.
        self._first_step = 0
        run = self._run
        if run is None:
            return
        run.finish()
        self._last_num_steps = run.done
        if run.fell_short:
            if self.steps_per_epoch or not run.done:
                self._interrupted_warning()
            self._current_iterator = None
        if is_stopped:
            # Otherwise Keras's loop has ended by itself and made this call.
            self.data_adapter.on_epoch_end()

    def sync(self) -> None:
        """Waits for the steps in flight; cheap if there are none."""
        if self._run is not None:
            self._run.sync()

    def close(self) -> None:
        """Keeps closures from starting more steps."""
        if self._run is not None:
            self._run.close()


class PredictEpochIterator(keras_compat.TFEpochIterator):
    """Lets the workers predict the batches that the chief reads, in order.

    The chief builds a `tfps.DatasetCreator` as the only pipeline.
    """

    def __init__(
        self,
        distribute_strategy: Any,
        *,
        functions: Callable[[], PredictFunctions],
        looks_ahead: bool = False,
        **keras_arguments: Any,
    ) -> None:
        """Prepares the input; reads nothing yet.

        Args:
            distribute_strategy: A `tfps.ParameterServerStrategy`.
            functions: Returns the model's functions when the first batch is
                read.
            looks_ahead: Whether to end after the last batch if the length is
                unknown; Keras would begin one more batch to find out.
            **keras_arguments: Other arguments of Keras's own iterator.
        """
        keras_compat.EpochIterator.__init__(self, **keras_arguments)
        self._coordinator = ClusterCoordinator(distribute_strategy)
        self._functions = functions
        self._looks_ahead = looks_ahead
        self._dataset = EncodedDataset(self.data_adapter.get_tf_dataset())
        self._input: PredictInput | None = None

    def _get_iterator(self) -> PredictInput:
        self._input = PredictInput(
            self._coordinator,
            self._functions,
            self._dataset.begin_pass(),
            self._dataset.codec,
            num_batches=self.steps_per_epoch or None,
            steps_per_closure=lambda num_steps: _steps_per_closure(
                self,
                self._coordinator,
                self.num_batches or num_steps,
                self._coordinator.num_lanes,
            ),
        )
        return self._input

    def _enumerate_iterator(self) -> Iterator[tuple[int, int, Any]]:
        if self.num_batches or not self._looks_ahead:
            yield from super()._enumerate_iterator()
            return
        self.data_adapter.on_epoch_begin()
        predict_input = self._get_iterator()
        step = 0
        while predict_input.has_next():
            yield step, step + self.steps_per_execution - 1, predict_input
            step += self.steps_per_execution
        self.data_adapter.on_epoch_end()

    def begin_at(self, place: Place) -> bool:
        """Returns False: predictions begin at the first batch."""
        del place
        return False

    def splits(self) -> tuple[int, list[int]]:
        """Returns no splits."""
        return 0, []

    def sync(self) -> None:
        """Does nothing: predictions do not change variables."""

    def close(self) -> None:
        """Waits for batches whose predictions are no longer needed."""
        if self._input is not None:
            self._input.close()

    @contextlib.contextmanager
    def catch_stop_iteration(self) -> Iterator[None]:
        """Ends the pass; warns if there were fewer batches than steps."""
        try:
            yield
        except StopIteration:
            if self.steps_per_epoch:
                self._interrupted_warning()
            self._current_iterator = None
            self.data_adapter.on_epoch_end()


class ChiefEpochIterator(keras_compat.TFEpochIterator):
    """Keras's own iterator, for steps on the chief; input may simply end."""

    def _interrupted_warning(self) -> None:
        if self.steps_per_epoch:
            super()._interrupted_warning()


def _steps_per_closure(
    iterator: keras_compat.TFEpochIterator,
    coordinator: ClusterCoordinator,
    num_steps: int,
    num_lanes: int,
    most: int = packing.MOST_STEPS_AT_FIRST,
) -> int:
    """Returns the number of steps to pack into one closure."""
    if iterator.steps_per_execution > 1:
        return int(iterator.steps_per_execution)
    chosen = coordinator.strategy.scheduling.steps_per_closure
    if chosen is not None:
        return int(chosen)
    return packing.choose_steps_per_closure(num_steps, num_lanes, most)
