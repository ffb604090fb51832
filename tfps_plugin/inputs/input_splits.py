"""Splits of a `DatasetCreator`: one pipeline for each worker, or a list."""

import logging
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any
from typing import Protocol

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.inputs import dataset_recipes
from tfps_plugin.inputs import listed_splits
from tfps_plugin.inputs.dataset_creator import DatasetCreator
from tfps_plugin.inputs.listed_splits import ListedSplits
from tfps_plugin.inputs.listed_splits import Transform
from tfps_plugin.inputs.splits import SplitLedger
from tfps_plugin.inputs.splits import Visitation
from tfps_plugin.inputs.worker_dataset import WorkerDataset
from tfps_plugin.variables.per_worker.worker_resident import WorkerResident

_logger = logging.getLogger("tfps_plugin.inputs")


class InputSplits(Protocol):
    """Splits of an input that workers read."""

    @property
    def element_spec(self) -> Any:
        """Type of a batch, a nested structure of `tf.TypeSpec`."""

    @property
    def visitation(self) -> Visitation:
        """Treatment of a split whose reader is lost."""

    def begin_pass(self, done: Collection[int] = ()) -> SplitLedger:
        """Begins a pass over the whole input; returns its ledger.

        Args:
            done: Splits that need not be read.
        """

    def go_on(self, epoch: int) -> int:
        """Prepares to resume in an epoch of an earlier program.

        Args:
            epoch: Number of the epoch, from 0.

        Returns:
            The number of splits in that epoch.
        """

    @property
    def is_outdated(self) -> bool:
        """True if the splits are for other workers than there are now."""

    def extend_to(self, worker_index: int) -> bool:
        """Makes a split for a worker that was added during a pass.

        Args:
            worker_index: The worker.

        Returns:
            Whether there is another split, the last one.
        """

    def build(
        self, context: DispatchContext, split: int, skip: int = 0
    ) -> tuple[Any, bool]:
        """Creates the iterator of a split; see `SplitReader`."""

    def describe(self, split: int) -> str:
        """Returns a description of a split for messages."""


def of_creator(
    creator: DatasetCreator,
    workers: Callable[[], Sequence[int]],
    scope: dataset_recipes.Scope,
    transform: Transform | None = None,
) -> InputSplits:
    """Returns the splits of a `DatasetCreator`.

    Args:
        creator: The input.
        workers: Returns the indices of the workers that read it.
        scope: Returns the context manager in which to trace its function.
        transform: Applied to each dataset; None leaves them unchanged.

    Returns:
        The splits that it lists, if it does; otherwise one for each worker.

    Raises:
        InputError: If workers cannot read the input.
    """
    if creator.splits is None:
        return PipelineSplits(creator, workers, scope, transform)
    return ListedSplits(creator, scope, transform)


class PipelineSplits:
    """One split for each worker: the share of its `tf.distribute.InputContext`.

    The methods are those of `InputSplits`.

    Each worker reads its own split, from a dataset that it builds once, so
    that shuffles and caches continue from epoch to epoch as in one process.
    The split of a lost worker is read again from the beginning, by a worker
    that is done with its own or by the lost worker when it is back.

    When workers were added or removed, the next pass shares the input out anew,
    from datasets that begin at their start.
    """

    def __init__(
        self,
        creator: DatasetCreator,
        workers: Callable[[], Sequence[int]],
        scope: dataset_recipes.Scope,
        transform: Transform | None = None,
    ) -> None:
        """Traces the function for each worker; see `of_creator`."""

        def build(context: tf.distribute.InputContext) -> tf.data.Dataset:
            dataset = creator.build(context)
            return dataset if transform is None else transform(dataset)

        self.visitation = creator.visitation
        self._workers = workers
        self._scope = scope
        self._source = build
        self._indices = tuple(workers())
        self._dataset = WorkerDataset(build, len(self._indices), scope)
        self._extended: set[int] = set()
        # The datasets that each worker has built, by split.
        self._built: WorkerResident[dict[int, tf.data.Dataset]] = (
            WorkerResident(lambda context: {}, per_lane=False)
        )

    @property
    def element_spec(self) -> Any:
        return self._dataset.element_spec

    @property
    def is_outdated(self) -> bool:
        return tuple(self._workers()) != self._indices

    def begin_pass(self, done: Collection[int] = ()) -> SplitLedger:
        if self.is_outdated:
            self._share_out_anew()
        return SplitLedger(
            len(self._indices),
            self.visitation,
            preferred_workers=self._indices,
            done=done,
        )

    def _share_out_anew(self) -> None:
        """Makes a split for each of the present workers.

        Raises:
            InputError: If elements are of another type than before.
        """
        indices = tuple(self._workers())
        dataset = WorkerDataset(self._source, len(indices), self._scope)
        if dataset.element_spec != self.element_spec:
            raise errors.InputError(
                "The input has elements of another type now that the number of "
                "workers has changed. Expected the type that steps were traced "
                f"for, {self.element_spec}. Received: {dataset.element_spec} "
                f"for {len(indices)} workers. Make the shapes independent of "
                "the number of pipelines, for instance with an unknown batch "
                "size."
            )
        _logger.info(
            "The workers are %s now, which were %s: the input is shared out "
            "anew, and each share begins at its start.",
            list(indices),
            list(self._indices),
        )
        self._indices, self._dataset = indices, dataset
        self._extended.clear()
        self._built.forget()

    def extend_to(self, worker_index: int) -> bool:
        if worker_index in self._indices or worker_index in self._extended:
            return False
        # By split: the dataset knows nothing of the gaps that workers leave.
        self._dataset.extend_to(len(self._indices) + len(self._extended))
        self._extended.add(worker_index)
        return True

    def go_on(self, epoch: int) -> int:
        """Returns the same number for every epoch; see `InputSplits`."""
        return len(self._indices)

    def build(
        self, context: DispatchContext, split: int, skip: int = 0
    ) -> tuple[Any, bool]:
        built = self._built.get()
        with tf.device(context.cpu_device):
            if split not in built:
                built[split] = self._dataset.build(split)
            return listed_splits.iterate(built[split], skip)

    def describe(self, split: int) -> str:
        if split < len(self._indices):
            return f"the pipeline of worker {self._indices[split]}"
        return "the pipeline of a worker that was added"
