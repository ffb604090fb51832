"""One dataset per worker, from a function of it or from a dataset."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.inputs import captured_inputs
from tfps_plugin.inputs import dataset_recipes
from tfps_plugin.inputs import input_context
from tfps_plugin.inputs.per_worker_values import PerWorkerValues


class WorkerDataset:
    """A dataset of which each worker has its own, built on that worker.

    Nothing of the data passes through the chief: it sends the recipe of the
    dataset, and the worker runs it. Each worker's recipe is made here, for
    its own `tf.distribute.InputContext`, so that a mistake in the user's
    function shows at once and each worker reads its own share.

    Threading: made by one thread, used by any.
    """

    def __init__(
        self, source: Any, num_workers: int, scope: dataset_recipes.Scope
    ) -> None:
        """Makes the recipes; nothing runs on a worker yet.

        Args:
            source: A function or `tf.function` that returns a
                `tf.data.Dataset`, with no argument or with one, the worker's
                `tf.distribute.InputContext`; or a concrete function without
                arguments; or a `tf.data.Dataset`, which every worker then
                reads in full.
            num_workers: How many workers there are.
            scope: Returns the context manager that functions are traced in.

        Raises:
            InputError: If it cannot be built on a worker.
            TypeError: If it is neither a dataset nor a function of one.
            BaseException: What the function raised.
        """
        self._recipes: list[Callable[[], tf.data.Dataset]]
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
            traces = [
                _trace_for(
                    source,
                    input_context.for_worker(index, num_workers),
                    scope,
                )
                for index in range(num_workers)
            ]
            self._element_spec = _common_element_spec(traces)
            for trace in traces:
                captured_inputs.refuse_what_stays(trace)
            # They are alike but for the share that they read.
            dataset_recipes.refuse_python_operations(
                traces[0].graph.as_graph_def()
            )
            self._recipes = list(traces)
        else:
            raise TypeError(
                "A per-worker dataset cannot be made of this; expected a "
                "tf.data.Dataset, or a function that returns one. Received: "
                f"dataset_fn={source!r}"
            )

    @property
    def element_spec(self) -> Any:
        """What one element looks like, known without running anything."""
        return self._element_spec

    def __iter__(self) -> "WorkerIterator":
        """Makes one iterator per worker, each from the start of its dataset.

        Returns:
            The iterators, to be passed to `ClusterCoordinator.schedule`. A
            worker that was lost and came back starts its own again.

        Raises:
            UnsupportedError: When called while a `tf.function` is traced.
        """
        if tf.inside_function():
            raise errors.UnsupportedError(
                "iter() of a per-worker dataset was called while a "
                "tf.function was traced; expected a call from plain Python. "
                "Make the iterator before, and pass it as an argument."
            )
        return WorkerIterator(self._build_iterator, self._element_spec)

    def build(self, worker_index: int) -> tf.data.Dataset:
        """Builds one worker's dataset, on the current device."""
        return self._recipes[worker_index]()

    def _build_iterator(self, context: DispatchContext) -> Any:
        """Builds one worker's iterator; called on a lane's thread."""
        # Pipelines run on the CPU, whichever device closures are placed on.
        device = tf.DeviceSpec.from_string(context.device).replace(
            device_type="CPU", device_index=0
        )
        with tf.device(device.to_string()):
            return iter(self.build(context.worker_index))


class WorkerIterator(PerWorkerValues):
    """The iterators of a `WorkerDataset`: one per worker, built there.

    Passed to `ClusterCoordinator.schedule`, each closure gets its worker's.
    Closures of one worker share one iterator, which hands each element out
    once.
    """

    def __init__(
        self, build: Callable[[DispatchContext], Any], element_spec: Any
    ) -> None:
        """Creates the iterators; see `PerWorkerValues`."""
        super().__init__(build, type_spec=tf.data.IteratorSpec(element_spec))
        self._element_spec = element_spec

    @property
    def element_spec(self) -> Any:
        """What one element looks like, known without running anything."""
        return self._element_spec

    def __next__(self) -> Any:
        """Refuses: elements are where the workers are."""
        raise errors.UnsupportedError(
            "next() was called on the iterators of all workers; expected it "
            "inside a scheduled function, on the iterator of one worker. Pass "
            "the iterator to coordinator.schedule(step, args=(iterator,)) and "
            "call next(iterator) in the step."
        )


def _trace_for(
    function: Callable[..., Any],
    context: tf.distribute.InputContext,
    scope: dataset_recipes.Scope,
) -> tf.types.experimental.ConcreteFunction:
    """The recipe of one worker's dataset, from a function of the user."""
    if isinstance(function, tf.types.experimental.PolymorphicFunction):
        function = function.python_function
    with input_context.building_for(context):
        if not _takes_context(function):
            return dataset_recipes.trace(function, scope)
        return dataset_recipes.trace(
            functools.wraps(function)(lambda: function(context)), scope
        )


def _takes_context(function: Callable[..., Any]) -> bool:
    """Whether the user's function takes the input context."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True  # No signature to read, as of some builtins.
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
            f"tf.distribute.InputContext of its worker. Received: ({names})"
        )
    return any(each.kind is not each.KEYWORD_ONLY for each in parameters) and (
        not all(each.kind is each.VAR_KEYWORD for each in parameters)
    )


def _common_element_spec(
    traces: list[tf.types.experimental.ConcreteFunction],
) -> Any:
    """The element spec that all workers' datasets have."""
    specs = [dataset_recipes.dataset_of(trace).element_spec for trace in traces]
    for index, spec in enumerate(specs):
        if spec != specs[0]:
            raise errors.InputError(
                "All workers must read elements of one type, because they "
                "run one function. Received: worker 0 reads "
                f"{specs[0]}, worker {index} reads {spec}. Make the shapes "
                "alike, for instance with drop_remainder or an unknown batch "
                "size."
            )
    return specs[0]
