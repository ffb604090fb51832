"""How the splits of an input are found, and how each of them is read."""

import functools
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any
from typing import Protocol

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.inputs import dataset_recipes
from tfps_plugin.inputs.dataset_creator import DatasetCreator
from tfps_plugin.inputs.splits import SplitLedger
from tfps_plugin.inputs.splits import Visitation
from tfps_plugin.inputs.worker_dataset import WorkerDataset
from tfps_plugin.variables.per_worker.worker_resident import WorkerResident

# What is done to every dataset before it is read, such as weighing classes.
Transform = Callable[[tf.data.Dataset], tf.data.Dataset]


class InputSplits(Protocol):
    """The splits of an input that workers read."""

    @property
    def element_spec(self) -> Any:
        """What one batch looks like."""

    @property
    def visitation(self) -> Visitation:
        """What becomes of a split whose reader is lost."""

    def begin_pass(self, done: Collection[int] = ()) -> SplitLedger:
        """Begins to read all of it once; its ledger.

        Args:
            done: Splits that need not be read.
        """

    def go_on(self, epoch: int) -> int:
        """Has the next pass be that of an epoch of an earlier program.

        Args:
            epoch: Its number, from 0.

        Returns:
            How many splits it has.
        """

    def build(self, context: DispatchContext, split: int) -> tuple[Any, bool]:
        """Makes the iterator of a split; see `SplitReader`."""

    def describe(self, split: int) -> str:
        """What a split is, for people."""


def of_creator(
    creator: DatasetCreator,
    num_workers: int,
    scope: dataset_recipes.Scope,
    transform: Transform | None = None,
) -> InputSplits:
    """The splits of a `DatasetCreator`.

    Args:
        creator: The input.
        num_workers: How many workers read it.
        scope: Returns the context manager that its function is traced in.
        transform: What is done to each dataset.

    Returns:
        The splits that it names; else the pipelines of the workers.

    Raises:
        InputError: If it cannot be read by workers.
    """
    if creator.splits is None:
        return PipelineSplits(creator, num_workers, scope, transform)
    return ListedSplits(creator, scope, transform)


class PipelineSplits:
    """One split for each worker: what its `tf.distribute.InputContext` says.

    Each worker reads its own, from the dataset that it built once: shuffles
    and caches go on from epoch to epoch as they do in one process. What a lost
    worker had not finished is read by whoever is done with its own, from the
    beginning, or by that worker when it is back.
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
        # Of each worker: the datasets that it has built, by split.
        self._built: WorkerResident[dict[int, tf.data.Dataset]] = (
            WorkerResident(lambda context: {}, per_lane=False)
        )

    @property
    def element_spec(self) -> Any:
        """What one batch looks like."""
        return self._dataset.element_spec

    def begin_pass(self, done: Collection[int] = ()) -> SplitLedger:
        """Begins to read all of it once; see `InputSplits`."""
        return SplitLedger(
            self._num_workers,
            self.visitation,
            preferred_workers=range(self._num_workers),
            done=done,
        )

    def go_on(self, epoch: int) -> int:
        """Every epoch has the same splits; see `InputSplits`."""
        return self._num_workers

    def build(self, context: DispatchContext, split: int) -> tuple[Any, bool]:
        """Makes the iterator of a split; see `SplitReader`."""
        built = self._built.get()
        with tf.device(context.cpu_device):
            if split not in built:
                built[split] = self._dataset.build(split)
            return _iterate(built[split])

    def describe(self, split: int) -> str:
        """What a split is, for people."""
        return f"the pipeline of worker {split}"


class ListedSplits:
    """Splits that the user lists: files, ranges, anything made of tensors.

    The dataset function is traced once, for a split that is not known yet. One
    that cannot be, such as `tf.data.experimental.make_csv_dataset`, which
    opens the file to see its columns, is traced for each split with strings,
    as it was listed.
    """

    def __init__(
        self,
        creator: DatasetCreator,
        scope: dataset_recipes.Scope,
        transform: Transform | None = None,
    ) -> None:
        """Traces the function; see `of_creator`."""
        self.visitation = creator.visitation
        self._list = creator.splits
        self._epoch = 0
        self._scope = scope
        # Traced for the first list; all others have to be like it.
        listed = _listed(self._list, 0)
        self._splits = _as_tensors(listed)
        self._spec = _common_spec(self._splits)

        def build(split: Any) -> tf.data.Dataset:
            dataset = creator.build(split)
            return dataset if transform is None else transform(dataset)

        self._build = build
        # Of each split that was traced by itself, by its place; None: one for
        # all of them.
        self._of_each: list[Any] | None = None
        # The same, by the split, for lists of later passes.
        self._known: dict[str, Any] = {}
        try:
            self._recipe = self._trace(build, self._spec)
        except errors.TfpsError:
            raise
        except Exception:
            if not _has_strings(listed[0]):
                raise
            self._trace_each(listed)
            self._recipe = self._known[repr(listed[0])]

    def _trace(self, build: Callable[..., Any], *specs: Any) -> Any:
        recipe = dataset_recipes.trace(build, self._scope, specs)
        dataset_recipes.refuse_python_operations(recipe.graph.as_graph_def())
        return recipe

    def _trace_each(self, listed: Sequence[Any]) -> None:
        """Traces the function for each split, as it was listed.

        Raises:
            InputError: If what splits yield is not alike.
        """
        for number, split in enumerate(listed):
            key = repr(split)
            if key not in self._known:
                recipe = self._trace(functools.partial(self._build, split))
                first = next(iter(self._known.values()), recipe)
                found, expected = (
                    dataset_recipes.dataset_of(each).element_spec
                    for each in (recipe, first)
                )
                if repr(found) != repr(expected):
                    raise errors.InputError(
                        "The datasets of all splits must have elements of one "
                        f"type. Received: that of split {number}, {split!r}, "
                        f"has {found}, expected {expected}, as of the first."
                    )
                self._known[key] = recipe
        self._of_each = [self._known[repr(split)] for split in listed]

    @property
    def element_spec(self) -> Any:
        """What one batch looks like."""
        return dataset_recipes.dataset_of(self._recipe).element_spec

    def begin_pass(self, done: Collection[int] = ()) -> SplitLedger:
        """Begins to read all of it once; see `InputSplits`."""
        self._list_epoch()
        self._epoch += 1
        return SplitLedger(len(self._splits), self.visitation, done=done)

    def go_on(self, epoch: int) -> int:
        """Lists the splits of that epoch; see `InputSplits`."""
        self._epoch = epoch
        self._list_epoch()
        return len(self._splits)

    def _list_epoch(self) -> None:
        if callable(self._list) and self._epoch:
            listed = _listed(self._list, self._epoch)
            splits = _as_tensors(listed)
            _common_spec(splits, self._spec)
            if self._of_each is not None:
                self._trace_each(listed)
            self._splits = splits

    def build(self, context: DispatchContext, split: int) -> tuple[Any, bool]:
        """Makes the iterator of a split; see `SplitReader`."""
        with tf.device(context.cpu_device):
            if self._of_each is not None:
                return _iterate(self._of_each[split]())
            # The trace takes tensors, in the order of the structure.
            return _iterate(self._recipe(*tf.nest.flatten(self._splits[split])))

    def describe(self, split: int) -> str:
        """What a split is, for people."""
        value = tf.nest.map_structure(
            lambda tensor: tensor.numpy(), self._splits[split]
        )
        return f"split {split}, {value!r}"


def _has_strings(split: Any) -> bool:
    return any(isinstance(part, str) for part in tf.nest.flatten(split))


def _iterate(dataset: tf.data.Dataset) -> tuple[Any, bool]:
    is_infinite = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    return iter(dataset), is_infinite


def _listed(splits: Any, epoch: int) -> Sequence[Any]:
    found = splits(epoch) if callable(splits) else splits
    if isinstance(found, str | bytes) or not hasattr(found, "__len__"):
        raise errors.InputError(
            "splits is expected to be a list of splits, or a function of the "
            "number of the epoch that returns one. Received: "
            f"{'splits(' + str(epoch) + ')' if callable(splits) else 'splits'}"
            f"={found!r}"
        )
    if not len(found):
        raise errors.InputError(
            "There is nothing to read; expected at least one split. Received: "
            f"splits={found!r} for epoch {epoch}. If they are files, see that "
            "the pattern matches some."
        )
    return list(found)


def _as_tensors(splits: Sequence[Any]) -> list[Any]:
    return [tf.nest.map_structure(_as_tensor, split) for split in splits]


def _as_tensor(value: Any) -> tf.Tensor:
    # Whole numbers are int64 to all of tf.data, such as skip and take.
    return tf.convert_to_tensor(value, dtype_hint=tf.int64)


def _common_spec(splits: Sequence[Any], expected: Any = None) -> Any:
    """What every split looks like.

    Args:
        splits: Of tensors.
        expected: What they have to look like; None: like the first.
    """
    if expected is None:
        expected = tf.nest.map_structure(tf.TensorSpec.from_tensor, splits[0])
    for number, split in enumerate(splits):
        spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, split)
        if repr(spec) != repr(expected):
            raise errors.InputError(
                "All splits must be of one type, because one dataset function "
                f"is traced for them. Received: split {number} is {spec}, "
                f"expected {expected}."
            )
    return expected
