"""Recipes of datasets, which the chief sends to workers, to be run there."""

import contextlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin._compat.runtime import tensorflow_strategy
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
    """Traces a function of the user into the recipe of a dataset.

    Args:
        function: Returns the dataset.
        scope: Returns the context manager in which to trace it.
        specs: Types of its arguments, nested structures of `tf.TypeSpec`.

    Returns:
        A concrete function of tensors of those types.

    Raises:
        TypeError: If it returns no dataset.
        InputError: If it creates a variable.
        BaseException: What the function raised.
    """
    # A nested tf.function would keep its first trace.
    if isinstance(function, tf.types.experimental.PolymorphicFunction):
        function = function.python_function

    def dataset_function(*arguments: Any) -> Any:
        # A lookup table that is created here belongs on the workers.
        with tensorflow_strategy.resource_creators_scope(table_creators):
            dataset = function(*arguments)
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                "A dataset function must return a tf.data.Dataset. "
                f"Received: a {type(dataset).__name__} from "
                f"{getattr(function, '__name__', function)!r}"
            )
        if not tf.is_symbolic_tensor(tf.data.experimental.to_variant(dataset)):
            # Made on the chief. Options are put on the device of the dataset
            # that they are for; those of an operation in here are on the
            # worker that runs it.
            dataset = dataset.skip(0)
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
    """Returns the dataset of a recipe, for its type; runs nothing.

    Args:
        concrete: The recipe, from `trace` or the user.

    Raises:
        TypeError: If it returns no dataset.
    """
    dataset = concrete.structured_outputs
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "A dataset function must return a tf.data.Dataset. Received: a "
            f"{type(dataset).__name__}"
        )
    return dataset


def ship(dataset: tf.data.Dataset) -> Callable[[], tf.data.Dataset]:
    """Returns the recipe of a dataset that was created on the chief.

    Raises:
        InputError: If it cannot leave the chief.
    """
    dataset = without_tuning(dataset)
    element_spec = dataset.element_spec
    # The user's own option decides on the state of random operations. All
    # options travel inside the graph.
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
    """Serializes a dataset, so that any task can build it.

    Args:
        variant: The dataset.
        policy: Treatment of the state of random operations.

    Returns:
        A string scalar: the serialized `GraphDef` of the dataset.

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
            "A tf.data.Dataset cannot be sent to the workers, because it "
            "refers to an object that cannot leave its task, such as a lookup "
            "table or a variable of a strategy, or has state that its options "
            f"do not allow to drop. Received: error={error.message} Pass a "
            "function that creates the dataset instead: it is then built on "
            "each worker, with the worker's own tables."
        ) from error
    refuse_python_operations(tf.compat.v1.GraphDef.FromString(graph.numpy()))
    return graph


def refuse_python_operations(graph: Any) -> None:
    """Refuses a dataset that calls Python functions of the chief.

    Args:
        graph: The `GraphDef` of the dataset.

    Raises:
        InputError: If it contains such an operation.
    """
    operations = {node.op for node in graph.node}
    for function in graph.library.function:
        operations.update(node.op for node in function.node_def)
    found = sorted(operations & _PYTHON_OPERATIONS)
    if found:
        raise errors.InputError(
            "A worker's dataset cannot call Python, because workers run only "
            "TensorFlow operations and no user code. Expected a dataset "
            "without tf.py_function, tf.numpy_function and from_generator. "
            f"Received: operations {', '.join(found)}. Write the data to "
            "files that workers read (TFRecord, CSV), pass arrays with "
            "from_tensor_slices, or use TensorFlow operations."
        )


def _refuse_variable(next_creator: Any, **kwargs: Any) -> Any:
    raise errors.InputError(
        "A dataset function must not create variables. Expected a function "
        "that only creates a tf.data.Dataset. Received: a variable named "
        f"{kwargs.get('name')!r}. Create it earlier, under strategy.scope()."
    )
