"""Datasets and iterators of the chief that functions for workers capture.

A dataset that was created outside of a function is an object in the memory of
the chief, which no worker can use. Its recipe, however, can be sent.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_captures
from tfps_plugin._compat.graph import tensorflow_graphs as graphs_compat
from tfps_plugin._compat.graph import tensorflow_inputs
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.inputs import dataset_recipes

_INSTEAD = {
    "IteratorResource": (
        "an iterator of the chief",
        "Pass iter(coordinator.create_per_worker_dataset(dataset_fn)) as an "
        "argument of the function, and call next() on that.",
    ),
    "LookupInterface": (
        "a mutable lookup table, such as a MutableHashTable, on the chief",
        "Use a tf.lookup.StaticHashTable, of which every worker has a copy, "
        "keep values that change in a tf.Variable, or use the table in a "
        "dataset function.",
    ),
}


def sent_along(graph: Any, captured: tf.Tensor) -> tf.Tensor | None:
    """Replaces a dataset of the chief inside a function.

    Args:
        graph: The graph of the function that is being traced.
        captured: A tensor of the chief, of variant dtype.

    Returns:
        The same dataset, which the function creates from its recipe; None if
        it is no dataset, or cannot be sent (see `refuse_what_stays`).
    """
    if not tensorflow_inputs.is_dataset(captured):
        return None
    function = compat.outermost(graph)
    known: list[tuple[tf.Tensor, tf.Tensor]] = graphs_compat.attached(
        function, "captured_datasets", list
    )
    for theirs, mine in known:
        if theirs is captured:
            return mine
    try:
        recipe = dataset_recipes.serialized(captured)
    except errors.InputError:
        return None
    with (
        function.as_default(),
        tf.control_dependencies(None),
        compat.clear_device(),
    ):
        # Captured by value, as an argument. TensorFlow would fold a constant
        # into a constant dataset, which no graph can contain.
        made = tf.raw_ops.DatasetFromGraph(graph_def=recipe)
    known.append((captured, made))
    return made


def refuse_what_stays(function: Any) -> None:
    """Refuses a function for workers that has captured datasets of the chief.

    Raises:
        InputError: If it uses a dataset that cannot be sent.
    """
    for captured in tensorflow_captures.values_of(function.graph):
        if captured.dtype == tf.variant and (
            tensorflow_inputs.is_dataset(captured)
        ):
            # Raises an error with the reason, if the dataset is at fault.
            dataset_recipes.serialized(captured)
            raise errors.InputError(
                "A function for workers uses a tf.data.Dataset that was "
                "created outside of it, and was traced where the dataset "
                "could not be included. Expected a function that is traced "
                f"for the workers. Received: function={_name(function)}. "
                "Pass the tf.function itself instead of the result of its "
                "get_concrete_function()."
            )


def refuse_resources(function: Any) -> None:
    """Refuses a scheduled function that has captured objects of the chief.

    Raises:
        InputError: If it uses a dataset that cannot be sent, or an iterator
            or mutable lookup table, of which workers have no copies.
    """
    refuse_what_stays(function)
    for captured in tensorflow_captures.values_of(function.graph):
        if captured.dtype != tf.resource:
            continue
        kind = tensorflow_inputs.kind_of_resource(captured)
        if kind in _INSTEAD:
            what, instead = _INSTEAD[kind]
            raise errors.InputError(
                f"A scheduled function uses {what}, which workers cannot "
                "reach. Expected only objects that can be sent to workers. "
                f"Received: function={_name(function)}, which captures a "
                f"resource of type {kind}. {instead}"
            )


def _name(function: Any) -> str:
    return tf.compat.as_str(function.name)


def refuse_argument(leaf: Any) -> None:
    """Refuses an argument of a scheduled function that must stay on the chief.

    Args:
        leaf: The argument, or an element of a structure of arguments.

    Raises:
        InputError: If it is a dataset or an iterator.
    """
    if isinstance(leaf, tf.data.Dataset | tf.data.Iterator):
        raise errors.InputError(
            "A dataset or iterator on the chief cannot be an argument of a "
            "scheduled function. Expected one that each worker has. Received: "
            f"argument={leaf!r}. Pass "
            "iter(coordinator.create_per_worker_dataset(dataset)), or use the "
            "dataset inside the function without passing it."
        )
