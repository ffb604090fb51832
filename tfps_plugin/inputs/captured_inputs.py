"""Datasets and iterators of the chief, in functions that workers run.

A dataset that was made outside of a function is a value of the chief's
memory: no worker can take it. What it was made of can be sent, as a recipe.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_captures
from tfps_plugin._compat import tensorflow_inputs
from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.inputs import dataset_recipes

_COLLECTION = "tfps_captured_datasets"

_INSTEAD = {
    "IteratorResource": (
        "an iterator of the chief",
        "Pass iter(coordinator.create_per_worker_dataset(dataset_fn)) as an "
        "argument of the function, and call next() on that.",
    ),
    "LookupInterface": (
        "a lookup table that changes, such as a MutableHashTable, which is on "
        "the chief",
        "Use a tf.lookup.StaticHashTable, of which every worker has a copy, "
        "keep what changes in a tf.Variable, or look it up in a dataset "
        "function.",
    ),
}


def sent_along(graph: Any, captured: tf.Tensor) -> tf.Tensor | None:
    """What a function has in the place of a dataset of the chief.

    Args:
        graph: The function that is being traced.
        captured: A tensor of the chief, of variant dtype.

    Returns:
        The same dataset, which the function makes of its recipe; None if it
        is no dataset, or cannot be sent (see `refuse_what_stays`).
    """
    if not tensorflow_inputs.is_dataset(captured):
        return None
    function = compat.outermost(graph)
    known = function.get_collection_ref(_COLLECTION)
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
        # Captured by value, as an argument. Of a constant TensorFlow would
        # make a constant dataset, which no graph can have.
        made = tf.raw_ops.DatasetFromGraph(graph_def=recipe)
    known.append((captured, made))
    return made


def refuse_what_stays(function: Any) -> None:
    """Refuses a function for workers that has captured inputs of the chief.

    Args:
        function: A concrete function.

    Raises:
        InputError: If it uses a dataset that cannot be sent.
    """
    for captured in tensorflow_captures.values_of(function.graph):
        if captured.dtype == tf.variant and (
            tensorflow_inputs.is_dataset(captured)
        ):
            # It says why.
            dataset_recipes.serialized(captured)
            raise errors.InputError(
                "A function that workers run uses a tf.data.Dataset that was "
                "made outside of it, and was traced where it could not be "
                "sent along; expected a function that is traced for the "
                f"workers. Received: {_name(function)}. Pass the tf.function "
                "itself in the place of its get_concrete_function()."
            )


def refuse_resources(function: Any) -> None:
    """Refuses a scheduled function that has captured inputs of the chief.

    Args:
        function: A concrete function.

    Raises:
        InputError: If it uses a dataset that cannot be sent, or an iterator
            or lookup table of which workers have no copies.
    """
    refuse_what_stays(function)
    for captured in tensorflow_captures.values_of(function.graph):
        if captured.dtype != tf.resource:
            continue
        kind = tensorflow_inputs.kind_of_resource(captured)
        if kind in _INSTEAD:
            what, instead = _INSTEAD[kind]
            raise errors.InputError(
                f"A scheduled function uses {what}; expected nothing that "
                "cannot leave the chief. Received: the function "
                f"{_name(function)}, which captures a resource of type "
                f"{kind}. {instead}"
            )


def _name(function: Any) -> str:
    return tf.compat.as_str(function.name)


def refuse_argument(leaf: Any) -> None:
    """Refuses an argument of a scheduled function that stays on the chief.

    Raises:
        InputError: If it is a dataset or an iterator.
    """
    if isinstance(leaf, tf.data.Dataset | tf.data.Iterator):
        raise errors.InputError(
            "A dataset or iterator of the chief cannot be an argument of a "
            "scheduled function; expected one that each worker has. Received: "
            f"{leaf!r}. Pass iter(coordinator.create_per_worker_dataset("
            "dataset)), or use the dataset inside the function without "
            "passing it."
        )
