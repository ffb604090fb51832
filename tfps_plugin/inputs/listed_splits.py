"""Splits that a user lists: files, ranges, anything made of tensors."""

import functools
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.inputs import dataset_recipes
from tfps_plugin.inputs.dataset_creator import DatasetCreator
from tfps_plugin.inputs.splits import SplitLedger

# Applied to every dataset before it is read, for instance for class weights.
Transform = Callable[[tf.data.Dataset], tf.data.Dataset]


class ListedSplits:
    """Splits from a list, or from a function that returns one for each pass.

    The methods are those of `InputSplits`.

    The dataset function is traced once, with symbolic tensors in place of a
    split. A function for which that fails, for instance because
    `tf.data.experimental.make_csv_dataset` opens the file to find its columns,
    is traced for each split, as it was listed.
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
        # The first list determines the type of all others.
        listed = _listed(self._list, 0)
        self._splits = _as_tensors(listed)
        self._spec = _common_spec(self._splits)

        def build(split: Any) -> tf.data.Dataset:
            dataset = creator.build(split)
            return dataset if transform is None else transform(dataset)

        self._build = build
        # One recipe for each split of the current list, if each split is
        # traced separately; otherwise None.
        self._of_each: list[Any] | None = None
        # The same recipes by split, reused in the lists of later passes.
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
            InputError: If the datasets differ in the type of their elements.
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
                        f"type. Expected {expected}, as for the first split. "
                        f"Received: {found} for split {number}, {split!r}."
                    )
                self._known[key] = recipe
        self._of_each = [self._known[repr(split)] for split in listed]

    @property
    def element_spec(self) -> Any:
        return dataset_recipes.dataset_of(self._recipe).element_spec

    def begin_pass(self, done: Collection[int] = ()) -> SplitLedger:
        self._list_epoch()
        self._epoch += 1
        return SplitLedger(len(self._splits), self.visitation, done=done)

    def go_on(self, epoch: int) -> int:
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

    @property
    def is_outdated(self) -> bool:
        """False: any workers share the splits."""
        return False

    def extend_to(self, worker_index: int) -> bool:
        """Returns False: a worker that was added takes one of the splits."""
        del worker_index
        return False

    def build(
        self, context: DispatchContext, split: int, skip: int = 0
    ) -> tuple[Any, bool]:
        with tf.device(context.cpu_device):
            if self._of_each is not None:
                return iterate(self._of_each[split](), skip)
            # The trace takes flat tensors, in the order of the structure.
            return iterate(
                self._recipe(*tf.nest.flatten(self._splits[split])), skip
            )

    def describe(self, split: int) -> str:
        value = tf.nest.map_structure(
            lambda tensor: tensor.numpy(), self._splits[split]
        )
        return f"split {split}, {value!r}"


def _has_strings(split: Any) -> bool:
    return any(isinstance(part, str) for part in tf.nest.flatten(split))


def iterate(dataset: tf.data.Dataset, skip: int = 0) -> tuple[Any, bool]:
    """Returns an iterator, and whether the dataset repeats without end.

    Args:
        dataset: The dataset.
        skip: Number of its first elements that are left out.
    """
    if skip:
        dataset = dataset.skip(skip)
    is_infinite = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    return iter(dataset), is_infinite


def _listed(splits: Any, epoch: int) -> Sequence[Any]:
    found = splits(epoch) if callable(splits) else splits
    if isinstance(found, str | bytes) or not hasattr(found, "__len__"):
        raise errors.InputError(
            "The splits cannot be listed. Expected a list of splits, or a "
            "function of the number of the epoch that returns one. Received: "
            f"{'splits(' + str(epoch) + ')' if callable(splits) else 'splits'}"
            f"={found!r}"
        )
    if not len(found):
        raise errors.InputError(
            "There is nothing to read. Expected at least one split. Received: "
            f"splits={found!r} for epoch {epoch}. If they are files, make "
            "sure that the pattern matches some."
        )
    return list(found)


def _as_tensors(splits: Sequence[Any]) -> list[Any]:
    return [tf.nest.map_structure(_as_tensor, split) for split in splits]


def _as_tensor(value: Any) -> tf.Tensor:
    # tf.data uses int64 for whole numbers, for instance in skip and take.
    return tf.convert_to_tensor(value, dtype_hint=tf.int64)


def _common_spec(splits: Sequence[Any], expected: Any = None) -> Any:
    """Returns the type that all splits share.

    Args:
        splits: Splits, as structures of tensors.
        expected: The type that they must have; None for that of the first.

    Raises:
        InputError: If a split has another type.
    """
    if expected is None:
        expected = tf.nest.map_structure(tf.TensorSpec.from_tensor, splits[0])
    for number, split in enumerate(splits):
        spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, split)
        if repr(spec) != repr(expected):
            raise errors.InputError(
                "All splits must be of one type, because the dataset function "
                f"is traced once for all of them. Expected {expected}. "
                f"Received: {spec} for split {number}."
            )
    return expected
