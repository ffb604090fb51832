"""Values that epoch iterators yield: the input of a pass, and its steps."""

import abc
import logging
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.inputs.input_splits import InputSplits
from tfps_plugin.inputs.split_reader import Share
from tfps_plugin.inputs.split_reader import SplitReader
from tfps_plugin.inputs.splits import SplitLedger
from tfps_plugin.inputs.splits import Visitation
from tfps_plugin.training.steps.epoch.bounded_run import ChiefReadBoundedRun
from tfps_plugin.training.steps.epoch.bounded_run import WorkerReadBoundedRun
from tfps_plugin.training.steps.epoch.chief_read_run import ChiefReadRun
from tfps_plugin.training.steps.epoch.step_run import StepRun
from tfps_plugin.training.steps.epoch.sync_run import ChiefReadSyncRun
from tfps_plugin.training.steps.epoch.sync_run import WorkerReadSyncRun
from tfps_plugin.training.steps.epoch.worker_read_run import WorkerReadRun
from tfps_plugin.training.steps.metrics.progress_logs import ProgressLogs
from tfps_plugin.training.steps.traced.step_functions import StepFunctions

_logger = logging.getLogger("tfps_plugin.training")


class ClusterInput(abc.ABC):
    """Input whose steps run on the workers.

    Attributes:
        run: The steps of the current epoch; None before the first.
        steps_of_request: Returns the number of steps of Keras's next request.
        show_all_batches: Whether a callback uses the logs of batches.
        on_begin: Receives the steps of each epoch.
    """

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        steps_per_closure: Callable[[int, int, int], int],
    ) -> None:
        """Prepares the input; reads nothing yet."""
        self._coordinator = coordinator
        self._steps_per_closure = steps_per_closure
        self.run: StepRun | None = None
        self.steps_of_request: Callable[[], int] = lambda: 1
        self.show_all_batches = False
        self.on_begin: Callable[[StepRun], None] = lambda run: None

    def __iter__(self) -> "ClusterInput":
        """Returns itself: it keeps its position from epoch to epoch."""
        return self

    def __next__(self) -> None:
        """Raises an error: Keras passes the whole input to the function."""
        raise errors.InternalError(
            "A batch was asked for that goes to a worker. Please report this."
        )

    def begin(
        self, functions: StepFunctions, progress: ProgressLogs
    ) -> StepRun:
        """Begins the steps of an epoch."""
        self.run = self._new_run(functions, progress)
        self.on_begin(self.run)
        return self.run

    def _packing(self, functions: StepFunctions) -> Callable[[int, int], int]:
        """Returns the choice of the number of steps of a closure."""
        # Workers that make every step together share none of them.
        num_lanes = (
            1 if functions.is_synchronous else self._coordinator.num_lanes
        )
        return lambda num_steps, most: self._steps_per_closure(
            num_steps, most, num_lanes
        )

    @property
    @abc.abstractmethod
    def batch_spec(self) -> Any:
        """Type of a batch, as a step sees it."""

    @abc.abstractmethod
    def _new_run(
        self, functions: StepFunctions, progress: ProgressLogs
    ) -> StepRun:
        """Returns the steps of an epoch, none of them requested yet."""


class WorkerInput(ClusterInput):
    """Input that every worker reads for itself."""

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        splits: InputSplits,
        *,
        begin_pass: Callable[[], SplitLedger],
        num_steps: int | None,
        steps_per_closure: Callable[[int, int, int], int],
    ) -> None:
        """Prepares a pass over the input.

        Args:
            coordinator: Runs the closures.
            splits: The input.
            begin_pass: Begins a pass over the splits.
            num_steps: Steps of an epoch; None: the whole input.
            steps_per_closure: Returns the number of steps to pack. Takes the
                number of steps that ran so far, the number that makes a call
                long enough, and the number of closures that share the steps.
        """
        super().__init__(coordinator, steps_per_closure)
        self._splits = splits
        self._begin_pass = begin_pass
        self._num_steps = num_steps
        self._latest_run: WorkerReadRun | None = None
        # Created with the first steps: Keras requests more than it reads.
        self._reader: SplitReader | None = None
        self._counts_exactly = False

    @property
    def batch_spec(self) -> Any:
        return self._splits.element_spec

    def _new_run(
        self, functions: StepFunctions, progress: ProgressLogs
    ) -> StepRun:
        self._counts_exactly = functions.counts_exactly
        if self._splits.is_outdated:
            self._reader = None
        arguments = {
            "reader": self._reader or self._renew(),
            "take_in_workers": self._take_in_workers,
            "renew": self._renew,
            "element_spec": self._splits.element_spec,
            "num_steps": self._num_steps,
            "steps_per_closure": self._packing(functions),
        }
        if functions.is_synchronous:
            return WorkerReadSyncRun(
                self._coordinator, functions, progress, **arguments
            )
        if functions.is_bounded:
            return WorkerReadBoundedRun(
                self._coordinator, functions, progress, **arguments
            )
        self._latest_run = WorkerReadRun(
            self._coordinator, functions, progress, **arguments
        )
        return self._latest_run

    def splits(self) -> tuple[int, list[int]]:
        """Returns the number of splits of this pass, and the done ones."""
        return (0, []) if self._reader is None else self._reader.progress

    def _renew(self) -> SplitReader:
        self._reader = SplitReader(
            self._splits.build,
            self._begin_pass(),
            # What is read again from its start is counted again, so its
            # counts are dropped if it was not read to its end.
            hands_on=not (self._counts_exactly and self._num_steps is None),
            on_finished=self._finished,
            on_lost=self._lost,
            on_waiting=self._waiting,
        )
        return self._reader

    def _take_in_workers(self) -> None:
        """Gives workers that were added a share of the input, if it never ends.

        Where the epoch is the whole input, there is none until the next one.
        """
        if self._num_steps is None or self._reader is None:
            return
        for worker_index in self._coordinator.worker_indices:
            if self._splits.extend_to(worker_index):
                self._reader.add(worker_index)

    # Callbacks of the reader, on any thread. It may outlive the steps of an
    # epoch, which then ignore it.

    def _finished(self, share: Share) -> None:
        if self._latest_run is not None:
            self._latest_run.share_finished(share)

    def _lost(self, share: Share) -> None:
        what = self._splits.describe(share.split)
        if self._splits.visitation is Visitation.AT_MOST_ONCE:
            _logger.warning(
                "Worker %d was lost while it read %s; the rest of it is left "
                "out (visitation='at_most_once').",
                share.worker_index,
                what,
            )
        else:
            _logger.info(
                "What worker %d has read of %s is read again from its start.",
                share.worker_index,
                what,
            )
        if self._latest_run is not None:
            self._latest_run.share_lost(share)

    def _waiting(self) -> None:
        if self._latest_run is not None:
            self._latest_run.waiting_began()


class ChiefInput(ClusterInput):
    """Input that the chief reads, in its order."""

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        batches: Iterator[tf.Tensor],
        codec: BatchCodec,
        *,
        steps_per_closure: Callable[[int, int, int], int],
    ) -> None:
        """Begins a pass over the input; reads nothing yet.

        Args:
            coordinator: Runs the closures.
            batches: The input, as strings of shape `(C,)`.
            codec: Codec of the batches.
            steps_per_closure: Returns the number of steps to pack. Takes the
                number of requested steps, the number that makes a call long
                enough, and the number of closures that share the steps.
        """
        super().__init__(coordinator, steps_per_closure)
        self._batches = batches
        self._codec = codec

    @property
    def batch_spec(self) -> Any:
        return self._codec.decoded_spec

    def _new_run(
        self, functions: StepFunctions, progress: ProgressLogs
    ) -> StepRun:
        make: Callable[..., StepRun] = ChiefReadRun
        if functions.is_synchronous:
            make = ChiefReadSyncRun
        elif functions.is_bounded:
            make = ChiefReadBoundedRun
        return make(
            self._coordinator,
            functions,
            progress,
            codec=self._codec,
            batches=self._batches,
            steps_per_closure=self._packing(functions),
        )
