"""Preprocessing layers, and the tables and datasets that functions capture."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat.graph import tensorflow_tables
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.inputs import captured_inputs
from tfps_plugin.strategy.parameter_server_strategy import (
    ParameterServerStrategy,
)
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.per_worker import worker_tables


def capture(original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Returns a `FuncGraph.capture` for what was made outside the scope.

    Functions for workers capture some objects that know nothing of workers: a
    lookup table, for example of a layer that was adapted before, a dataset, and
    whatever the functions of a loaded SavedModel use. A table is bound to the
    worker's copy, a variable on a ps to its handle, when a function is called.
    A dataset is sent along.
    """

    def replacement(graph: Any, handle: tf.Tensor) -> tf.Tensor | None:
        if not in_our_scope():
            return None
        if handle.dtype == tf.variant:
            return captured_inputs.sent_along(graph, handle)
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


def in_our_scope() -> bool:
    """Returns whether this thread runs or traces under our strategy."""
    return isinstance(tf.distribute.get_strategy(), ParameterServerStrategy)


def outside_functions(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an `adapt`, or its beginning, that refuses to be in a function.

    There are no data yet while a function is traced: the loop over a dataset
    would never end.
    """

    @functools.wraps(original)
    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        if in_our_scope() and compat.function_graph() is not None:
            raise errors.InputError(
                "adapt() was called inside a dataset function, or another "
                "function that is traced: there are no data there yet. "
                "Expected a layer that is adapted before, by the program of "
                f"the chief. Received: layer={self.name!r}. Make and adapt "
                "the layer outside, and use it inside the function: every "
                "worker gets what it has learnt."
            )
        return original(self, *args, **kwargs)

    return tf.autograph.experimental.do_not_convert(refuse)


def with_lasting_constants(
    original: Callable[..., None],
) -> Callable[..., None]:
    """Returns a `Normalization.build` whose constants work in all functions.

    Constants created in a function belong to it alone; but the function that
    a dataset maps is traced for every worker, with the same layer.
    """

    @functools.wraps(original)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        if not in_our_scope():
            original(self, *args, **kwargs)
            return
        with tf.init_scope():
            original(self, *args, **kwargs)

    return build


def variables_that_no_step_reads(model: keras.Model) -> set[int]:
    """Returns the `id`s of variables that may be outside the scope.

    `Normalization` computes with constants that it derives from its variables
    when it is built, adapted or loaded, so it may be adapted before the scope.
    """
    return {
        id(variable)
        for layer in keras_compat.layers_within(model)
        if isinstance(layer, keras.layers.Normalization)
        for variable in layer.weights
    }
