"""Captures of tables and variables that were made outside the scope.

Functions for workers capture some objects that know nothing of workers: a
lookup table that was made outside the strategy's scope, for example by a layer
that was adapted before, and whatever the functions of a loaded SavedModel use.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_tables
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.per_worker import worker_tables


def bound_late(
    original: Callable[..., tf.Tensor],
    in_scope: Callable[[], bool],
    replace_variant: Callable[[Any, tf.Tensor], tf.Tensor | None] | None = None,
) -> Callable[..., tf.Tensor]:
    """Returns a `FuncGraph.capture` that binds them when a function is called.

    A table is bound to the worker's copy, a variable on a ps to its handle at
    that time.

    Args:
        original: TensorFlow's own `FuncGraph.capture`.
        in_scope: Returns whether this thread traces a function for workers.
        replace_variant: Maps the function and a captured tensor of variant
            dtype, such as a dataset, to a replacement, or to None.
    """

    def replacement(graph: Any, handle: tf.Tensor) -> tf.Tensor | None:
        if not in_scope():
            return None
        if handle.dtype == tf.variant:
            if replace_variant is None:
                return None
            return replace_variant(graph, handle)
        owner = tensorflow_tables.owner_of(handle)
        function = compat.outermost(graph)
        if tensorflow_tables.is_static_table(owner):
            return worker_tables.copies_of(handle, owner).handle_in(function)
        if isinstance(owner, RemoteVariable) and (
            function is compat.function_graph()
        ):
            return owner.handle
        return None

    return tensorflow_tables.replace_captured_handles(original, replacement)
