"""Splits of a `DatasetCreator`: one pipeline for each worker, or a list."""

from collections.abc import Collection
from typing import Any
from typing import Protocol

import tensorflow as tf

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

    def build(self, context: DispatchContext, split: int) -> tuple[Any, bool]:
        """Creates the iterator of a split; see `SplitReader`."""

    def describe(self, split: int) -> str:
        """Returns a description of a split for messages."""


def of_creator(
    creator: DatasetCreator,
    num_workers: int,
    scope: dataset_recipes.Scope,
    transform: Transform | None = None,
) -> InputSplits:
    """Returns the splits of a `DatasetCreator`.

    Args:
        creator: The input.
        num_workers: Number of workers that read it.
        scope: Returns the context manager in which to trace its function.
        transform: Applied to each dataset; None leaves them unchanged.

    Returns:
        The splits that it lists, if it does; otherwise one for each worker.

    Raises:
        InputError: If workers cannot read the input.
    """
    if creator.splits is None:
        return PipelineSplits(creator, num_workers, scope, transform)
    return ListedSplits(creator, scope, transform)


class PipelineSplits:
    """One split for each worker: the share of its `tf.distribute.InputContext`.

    The methods are those of `InputSplits`.

    Each worker reads its own split, from a dataset that it builds once, so
    that shuffles and caches continue from epoch to epoch as in one process.
    The split of a lost worker is read again from the beginning, by a worker
    that is done with its own or by the lost worker when it is back.
    """

    def __init__(
        self,
        creator: DatasetCreator,
        num_workers: int,
        scope: dataset_recipes.Scope,
        transform: Transform | None = None,
    ) -> None:
        """Traces the function for each worker; see `of_creator`."""

        def build(context: tf.distribute.InputContext) -> tf.data.Dataset:
            dataset = creator.build(context)
            return dataset if transform is None else transform(dataset)

        self.visitation = creator.visitation
        self._num_workers = num_workers
        self._dataset = WorkerDataset(build, num_workers, scope)
        # The datasets that each worker has built, by split.
        self._built: WorkerResident[dict[int, tf.data.Dataset]] = (
            WorkerResident(lambda context: {}, per_lane=False)
        )

    @property
    def element_spec(self) -> Any:
        return self._dataset.element_spec

    def begin_pass(self, done: Collection[int] = ()) -> SplitLedger:
        return SplitLedger(
            self._num_workers,
            self.visitation,
            preferred_workers=range(self._num_workers),
            done=done,
        )

    def go_on(self, epoch: int) -> int:
        """Returns the same number for every epoch; see `InputSplits`."""
        return self._num_workers

    def build(self, context: DispatchContext, split: int) -> tuple[Any, bool]:
        built = self._built.get()
        with tf.device(context.cpu_device):
            if split not in built:
                built[split] = self._dataset.build(split)
            return listed_splits.iterate(built[split])

    def describe(self, split: int) -> str:
        return f"the pipeline of worker {split}"
