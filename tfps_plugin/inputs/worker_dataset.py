"""Datasets per worker, from a function of the user or from one dataset."""

import functools
import inspect
import threading
import weakref
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.inputs import captured_inputs
from tfps_plugin.inputs import dataset_recipes
from tfps_plugin.inputs import input_context
from tfps_plugin.inputs.per_worker_values import PerWorkerValues


class WorkerDataset:
    """One dataset for each worker, built on that worker.

    No data passes through the chief: it sends the recipe of the dataset, and
    the worker runs it. The chief creates each worker's recipe for its own
    `tf.distribute.InputContext`, so that a mistake in the user's function
    shows at once and each worker reads its own share.

    Threading: safe from any thread, but one at a time extends it.
    """

    def __init__(
        self,
        source: Any,
        num_workers: int,
        scope: dataset_recipes.Scope,
        *,
        indices: Sequence[int] | None = None,
    ) -> None:
        """Creates the recipes; runs nothing on a worker yet.

        Args:
            source: A function or `tf.function` that returns a
                `tf.data.Dataset`, with no argument or with one, the worker's
                `tf.distribute.InputContext`; or a concrete function without
                arguments; or a `tf.data.Dataset`, which every worker then
                reads in full.
            num_workers: Number of workers.
            scope: Returns the context manager in which to trace functions.
            indices: Indices of the workers; None: those below their number.

        Raises:
            InputError: If the dataset cannot be built on a worker.
            TypeError: If `source` is neither a dataset nor a function that
                returns one.
            BaseException: What the function raised.
        """
        self._recipes: list[Callable[[], tf.data.Dataset]]
        self._scope = scope
        # The place of each worker's recipe, by its index.
        self._places = {
            index: place
            for place, index in enumerate(indices or range(num_workers))
        }
        # The user's function; None if all workers have one recipe.
        self._function: Callable[..., Any] | None = None
        if isinstance(source, tf.data.Dataset):
            self._element_spec = source.element_spec
            self._recipes = [dataset_recipes.ship(source)] * num_workers
        elif isinstance(source, tf.types.experimental.ConcreteFunction):
            self._element_spec = dataset_recipes.dataset_of(source).element_spec
            dataset_recipes.refuse_python_operations(
                source.graph.as_graph_def()
            )
            captured_inputs.refuse_what_stays(source)
            self._recipes = [source] * num_workers
        elif callable(source):
            self._function = source
            traces = [
                self._trace(source, index, num_workers)
                for index in range(num_workers)
            ]
            self._element_spec = _common_element_spec(traces)
            for trace in traces:
                captured_inputs.refuse_what_stays(trace)
            # The traces differ only in the share that they read.
            dataset_recipes.refuse_python_operations(
                traces[0].graph.as_graph_def()
            )
            self._recipes = list(traces)
        else:
            raise TypeError(
                "A per-worker dataset cannot be created from this object. "
                "Expected a tf.data.Dataset, or a function that returns one. "
                f"Received: dataset_fn={source!r}"
            )

    def _trace(
        self, function: Callable[..., Any], index: int, num_workers: int
    ) -> tf.types.experimental.ConcreteFunction:
        with self._scope():
            context = input_context.for_worker(index, num_workers)
        return _trace_for(function, context, self._scope)

    def extend_to(self, worker_index: int) -> None:
        """Makes a dataset for another worker; those of the others stay.

        Its input context is that of the last of so many pipelines, as if it had
        been there from the beginning. Does nothing if the worker has one.

        Args:
            worker_index: Index of the worker.

        Raises:
            InputError: If the worker cannot build it, or its elements are of
                another type.
            BaseException: What the user's function raised.
        """
        if worker_index in self._places:
            return
        number = len(self._recipes) + 1
        if self._function is None:
            self._recipes.append(self._recipes[-1])
            self._places[worker_index] = number - 1
            return
        trace = self._trace(self._function, number - 1, number)
        captured_inputs.refuse_what_stays(trace)
        found = dataset_recipes.dataset_of(trace).element_spec
        if found != self._element_spec:
            raise errors.InputError(
                "A worker that is added must read elements of the type that "
                "all others read, because they run the same function. Expected "
                f"{self._element_spec}. Received: worker {worker_index} reads "
                f"{found}. Make the shapes equal, for instance with "
                "drop_remainder or an unknown batch size."
            )
        self._recipes.append(trace)
        self._places[worker_index] = number - 1

    @property
    def element_spec(self) -> Any:
        """Type of an element; known without running anything."""
        return self._element_spec

    def __iter__(self) -> "WorkerIterator":
        """Creates one iterator per worker, each at the start of its dataset.

        Returns:
            The iterators, to be passed to `ClusterCoordinator.schedule`. A
            worker that was lost and came back starts from the beginning.

        Raises:
            UnsupportedError: If called while a `tf.function` is traced.
        """
        if tf.inside_function():
            raise errors.UnsupportedError(
                "iter() of a per-worker dataset was called while a "
                "tf.function was traced. Expected a call from plain Python. "
                "Received: a call inside a tf.function. Create the iterator "
                "before, and pass it as an argument."
            )
        return WorkerIterator(self._build_iterator, self._element_spec)

    def build(self, worker_index: int) -> tf.data.Dataset:
        """Builds one worker's dataset, on the current device."""
        return self._recipes[self._places[worker_index]]()

    def _build_iterator(self, context: DispatchContext) -> Any:
        """Builds one worker's iterator; called on a lane's thread."""
        # Pipelines run on the CPU, whichever device closures are placed on.
        device = tf.DeviceSpec.from_string(context.device).replace(
            device_type="CPU", device_index=0
        )
        with tf.device(device.to_string()):
            return iter(self.build(context.worker_index))


class WorkerDatasets:
    """The per-worker datasets of a program; a part of its connection.

    Guarded by `_lock`: the datasets, which it does not keep alive.
    """

    def __init__(self) -> None:
        """Begins without datasets."""
        self._lock = threading.Lock()
        self._datasets: weakref.WeakSet[WorkerDataset] = weakref.WeakSet()

    def add(self, dataset: WorkerDataset) -> None:
        """Extends a dataset when workers are added, as long as it lives."""
        with self._lock:
            self._datasets.add(dataset)

    def extend_to(self, worker_index: int) -> None:
        """Makes datasets for a worker that is about to be added.

        Args:
            worker_index: Index of the worker.

        Raises:
            BaseException: See `WorkerDataset.extend_to`.
        """
        with self._lock:
            datasets = list(self._datasets)
        for dataset in datasets:
            dataset.extend_to(worker_index)


class WorkerIterator(PerWorkerValues):
    """Iterators of a `WorkerDataset`, one per worker, built there.

    Passed to `ClusterCoordinator.schedule`, each closure gets that of its
    worker. The closures of one worker share one iterator, which returns each
    element once.
    """

    def __init__(
        self, build: Callable[[DispatchContext], Any], element_spec: Any
    ) -> None:
        """Creates the iterators; see `PerWorkerValues`."""
        super().__init__(build, type_spec=tf.data.IteratorSpec(element_spec))
        self._element_spec = element_spec

    @property
    def element_spec(self) -> Any:
        """Type of an element; known without running anything."""
        return self._element_spec

    def __next__(self) -> Any:
        """Raises an error, because the elements are on the workers.

        Raises:
            UnsupportedError: Always.
        """
        raise errors.UnsupportedError(
            "next() was called on the iterators of all workers. Expected a "
            "call inside a scheduled function, on the iterator of one worker. "
            "Received: a call on the chief. Pass the iterator to "
            "coordinator.schedule(step, args=(iterator,)) and call "
            "next(iterator) in the step."
        )


def _trace_for(
    function: Callable[..., Any],
    context: tf.distribute.InputContext,
    scope: dataset_recipes.Scope,
) -> tf.types.experimental.ConcreteFunction:
    """Traces the user's function into the recipe of one worker's dataset."""
    if isinstance(function, tf.types.experimental.PolymorphicFunction):
        function = function.python_function
    with input_context.building_for(context):
        if not _takes_context(function):
            return dataset_recipes.trace(function, scope)
        return dataset_recipes.trace(
            functools.wraps(function)(lambda: function(context)), scope
        )


def _takes_context(function: Callable[..., Any]) -> bool:
    """Returns whether the user's function takes the input context."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True  # Some builtins have no signature.
    required = [
        each
        for each in parameters
        if each.default is each.empty
        and each.kind
        not in (each.VAR_POSITIONAL, each.VAR_KEYWORD, each.KEYWORD_ONLY)
    ]
    if len(required) > 1 or any(
        each.kind is each.KEYWORD_ONLY and each.default is each.empty
        for each in parameters
    ):
        names = ", ".join(each.name for each in parameters)
        raise TypeError(
            "A dataset function takes no argument, or one: the "
            "tf.distribute.InputContext of its worker. Received: parameters="
            f"({names})"
        )
    return any(each.kind is not each.KEYWORD_ONLY for each in parameters) and (
        not all(each.kind is each.VAR_KEYWORD for each in parameters)
    )


def _common_element_spec(
    traces: list[tf.types.experimental.ConcreteFunction],
) -> Any:
    """Returns the element spec that the datasets of all workers share."""
    specs = [dataset_recipes.dataset_of(trace).element_spec for trace in traces]
    for index, spec in enumerate(specs):
        if spec != specs[0]:
            raise errors.InputError(
                "All workers must read elements of one type, because they "
                "run the same function. Received: worker 0 reads "
                f"{specs[0]}, worker {index} reads {spec}. Make the shapes "
                "equal, for instance with drop_remainder or an unknown batch "
                "size."
            )
    return specs[0]
