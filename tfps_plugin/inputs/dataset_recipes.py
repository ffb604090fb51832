"""Recipes of datasets: what the chief sends to a worker, to be run there."""

import contextlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_execution
from tfps_plugin._compat import tensorflow_strategy
from tfps_plugin.inputs.tuning import without_tuning

Scope = Callable[[], contextlib.AbstractContextManager[Any]]

# Operations that call back into the Python of the process that made them;
# workers and ps run no user code in Python.
_PYTHON_OPERATIONS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


def trace(
    function: Callable[..., Any],
    scope: Scope,
    specs: Sequence[Any] = (),
) -> tf.types.experimental.ConcreteFunction:
    """The recipe of a dataset, from a function of the user.

    Args:
        function: Returns the dataset.
        scope: Returns the context manager that it is traced in.
        specs: What it is given, nested structures of `tf.TypeSpec`.

    Returns:
        A function of tensors of those types.

    Raises:
        TypeError: If it returns no dataset.
        BaseException: What the function raised.
    """
    # Nested as it is, a tf.function would keep its first trace.
    if isinstance(function, tf.types.experimental.PolymorphicFunction):
        function = function.python_function

    def dataset_function(*arguments: Any) -> Any:
        # A lookup table that is made here belongs on the workers.
        with tensorflow_strategy.resource_creators_scope(table_creators):
            dataset = function(*arguments)
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                "A dataset function must return a tf.data.Dataset. "
                f"Received: {type(dataset).__name__} from "
                f"{getattr(function, '__name__', function)!r}"
            )
        return without_tuning(dataset)

    with (
        tensorflow_execution.unwrapped_errors(),
        scope(),
        tf.device(None),
        tf.variable_creator_scope(_refuse_variable),
    ):
        table_creators = tensorflow_strategy.resource_creators()
        return tf.function(dataset_function).get_concrete_function(*specs)


def dataset_of(
    concrete: tf.types.experimental.ConcreteFunction,
) -> tf.data.Dataset:
    """What a traced function returns, known without running it."""
    dataset = concrete.structured_outputs
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "A dataset function must return a tf.data.Dataset. Received: "
            f"{type(dataset).__name__}"
        )
    return dataset


def ship(dataset: tf.data.Dataset) -> Callable[[], tf.data.Dataset]:
    """The recipe of a dataset that was made on the chief."""
    dataset = without_tuning(dataset)
    element_spec = dataset.element_spec
    # What happens to the state of random operations is for the user's own
    # option to say; all options travel inside the graph.
    policy = dataset.options().experimental_external_state_policy
    policy = policy or tf.data.experimental.ExternalStatePolicy.WARN
    graph = serialized(tf.data.experimental.to_variant(dataset), policy)

    def recipe() -> tf.data.Dataset:
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
        return tf.data.experimental.from_variant(variant, element_spec)

    return recipe


def serialized(
    variant: tf.Tensor,
    policy: tf.data.experimental.ExternalStatePolicy = (
        tf.data.experimental.ExternalStatePolicy.WARN
    ),
) -> tf.Tensor:
    """What a dataset was made of, as a string that any task can read.

    Args:
        variant: The dataset.
        policy: What happens to the state of random operations.

    Raises:
        InputError: If it cannot leave the chief.
    """
    try:
        # A function may be being traced.
        with tf.init_scope():
            graph = tf.raw_ops.DatasetToGraphV2(
                input_dataset=variant,
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
    refuse_python_operations(tf.compat.v1.GraphDef.FromString(graph.numpy()))
    return graph


def refuse_python_operations(graph: Any) -> None:
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
