"""One dataset per worker, from a function of it or from a dataset."""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_execution
from tfps_plugin._compat import tensorflow_strategy
from tfps_plugin.cluster.dispatch_context import DispatchContext
from tfps_plugin.inputs import input_context
from tfps_plugin.inputs.per_worker_values import PerWorkerValues

Scope = Callable[[], contextlib.AbstractContextManager[Any]]

# Operations that call back into the Python of the process that made them;
# workers and ps run no user code in Python.
_PYTHON_OPERATIONS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


class WorkerDataset:
    """A dataset of which each worker has its own, built on that worker.

    Nothing of the data passes through the chief: it sends the recipe of the
    dataset, and the worker runs it. Each worker's recipe is made here, for
    its own `tf.distribute.InputContext`, so that a mistake in the user's
    function shows at once and each worker reads its own share.

    Threading: made by one thread, used by any.
    """

    def __init__(self, source: Any, num_workers: int, scope: Scope) -> None:
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
            self._recipes = [_shipped(source)] * num_workers
        elif isinstance(source, tf.types.experimental.ConcreteFunction):
            self._element_spec = _dataset_of(source).element_spec
            _refuse_python_operations(source.graph.as_graph_def())
            self._recipes = [source] * num_workers
        elif callable(source):
            traces = [
                _trace(
                    source,
                    input_context.for_worker(index, num_workers),
                    scope,
                )
                for index in range(num_workers)
            ]
            self._element_spec = _common_element_spec(traces)
            # They are alike but for the share that they read.
            _refuse_python_operations(traces[0].graph.as_graph_def())
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


def _trace(
    function: Callable[..., Any],
    context: tf.distribute.InputContext,
    scope: Scope,
) -> tf.types.experimental.ConcreteFunction:
    """The recipe of one worker's dataset, from a function of the user."""
    # Nested as it is, a tf.function would keep its first worker's trace.
    if isinstance(function, tf.types.experimental.PolymorphicFunction):
        function = function.python_function
    arguments = (context,) if _takes_context(function) else ()

    def dataset_function() -> Any:
        # A lookup table that is made here belongs on the workers.
        with tensorflow_strategy.resource_creators_scope(table_creators):
            dataset = function(*arguments)
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                "A dataset function must return a tf.data.Dataset. "
                f"Received: {type(dataset).__name__} from "
                f"{getattr(function, '__name__', function)!r}"
            )
        return dataset

    with (
        tensorflow_execution.unwrapped_errors(),
        input_context.building_for(context),
        scope(),
        tf.device(None),
        tf.variable_creator_scope(_refuse_variable),
    ):
        table_creators = tensorflow_strategy.resource_creators()
        return tf.function(dataset_function).get_concrete_function()


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


def _dataset_of(
    concrete: tf.types.experimental.ConcreteFunction,
) -> tf.data.Dataset:
    dataset = concrete.structured_outputs
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "A dataset function must return a tf.data.Dataset. Received: "
            f"{type(dataset).__name__}"
        )
    return dataset


def _common_element_spec(
    traces: list[tf.types.experimental.ConcreteFunction],
) -> Any:
    """The element spec that all workers' datasets have."""
    specs = [_dataset_of(trace).element_spec for trace in traces]
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


def _shipped(dataset: tf.data.Dataset) -> Callable[[], tf.data.Dataset]:
    """The recipe of a dataset that was made on the chief."""
    element_spec = dataset.element_spec
    # What happens to the state of random operations is for the user's own
    # option to say; all options travel inside the graph.
    policy = dataset.options().experimental_external_state_policy
    policy = policy or tf.data.experimental.ExternalStatePolicy.WARN
    try:
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=policy.value,
            strip_device_assignment=True,
        )
    except tf.errors.OpError as error:
        raise errors.InputError(
            "This tf.data.Dataset cannot be sent to the workers: it refers to "
            "something that cannot leave where it is, such as a lookup table "
            "or a variable of a strategy, or has state that its options do "
            f"not let go. Received: {error.message} Pass a function that "
            "makes the dataset instead: it is then built on each worker, with "
            "the worker's own tables."
        ) from error
    _refuse_python_operations(tf.compat.v1.GraphDef.FromString(graph.numpy()))

    def recipe() -> tf.data.Dataset:
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
        return tf.data.experimental.from_variant(variant, element_spec)

    return recipe


def _refuse_python_operations(graph: Any) -> None:
    """Refuses a dataset that only the chief's own Python could run."""
    operations = {node.op for node in graph.node}
    for function in graph.library.function:
        operations.update(node.op for node in function.node_def)
    found = sorted(operations & _PYTHON_OPERATIONS)
    if found:
        raise errors.InputError(
            "A worker's dataset cannot call Python: workers run no user "
            "code, only TensorFlow operations; expected a dataset without "
            "tf.py_function, tf.numpy_function and from_generator. "
            f"Received: operations {', '.join(found)}. Write the data to "
            "files that workers read (TFRecord, CSV), pass arrays with "
            "from_tensor_slices, or use TensorFlow operations."
        )


def _refuse_variable(next_creator: Any, **kwargs: Any) -> Any:
    raise errors.InputError(
        "A dataset function must not create variables; expected one that "
        "only makes a tf.data.Dataset. Received: a variable named "
        f"{kwargs.get('name')!r}. Create it before, under strategy.scope()."
    )
