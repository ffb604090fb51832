"""What functions for workers capture of things that exist already.

Some things are captured although they know nothing of workers: a lookup table
that was made outside the strategy's scope, as by a layer that was adapted
before it, and whatever the functions of a loaded SavedModel use.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import tensorflow_tables
from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.per_worker import worker_tables


def bound_late(
    original: Callable[..., tf.Tensor],
    in_scope: Callable[[], bool],
    replace_variant: Callable[[Any, tf.Tensor], tf.Tensor | None] | None = None,
) -> Callable[..., tf.Tensor]:
    """Returns a `FuncGraph.capture` that binds them when a function is called.

    A table is bound to the worker's copy, a variable on a ps to the handle
    that it has then.

    Args:
        original: TensorFlow's own.
        in_scope: Whether this thread traces a function for workers.
        replace_variant: From the function and a captured tensor of variant
            dtype, such as a dataset, to what it has in its place, or None.
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
