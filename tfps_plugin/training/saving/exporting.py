"""Exports models with variables on parameter servers as plain SavedModels.

TensorFlow retraces the functions of a SavedModel, where our variables act as
plain ones (`variables.saved_form`). This module handles Keras's part: Keras
finds the variables of the functions in its own, earlier traces.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat import keras_saving as compat
from tfps_plugin._compat.graph import tensorflow_saving
from tfps_plugin.variables.kinds.late_bound import LateBoundVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable


def concrete_function(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `get_concrete_function` whose results can be signatures."""
    return tensorflow_saving.traced_again(original, _is_for_workers)


def _is_for_workers() -> bool:
    """Returns whether this thread traces a function for workers."""
    runs = getattr(tf.distribute.get_strategy().extended, "chief_runs", None)
    return runs is not None and runs.is_traced_for_workers


def _is_ours(value: Any) -> bool:
    return isinstance(value, LateBoundVariable | ShardedVariable)


def track_tables(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a `_filter_and_track_resources` that tracks tables once.

    It traces as `tf.saved_model.save` will: traced as for training, functions
    would access parameter servers. It replaces stand-ins from the traces by the
    tables. Keras tracks both the `keras.Variable` of a layer and its value, so
    that the file would have every table twice.
    """

    @functools.wraps(original)
    def track(self: Any) -> None:
        with tensorflow_saving.saving_model():
            original(self)
        layers, used = compat.variables_in_archive(self)
        tracked = {id(keras_compat.value_of(variable)) for variable in layers}
        compat.set_used_variables(
            self,
            [
                variable
                for variable in map(_whole, used)
                if not _is_ours(variable) or id(variable) not in tracked
            ],
        )

    return track


def _whole(variable: Any) -> Any:
    container = getattr(variable, "_distributed_container", None)
    whole = None if container is None else container()
    return variable if whole is None else whole
