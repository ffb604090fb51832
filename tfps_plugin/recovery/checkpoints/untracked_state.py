"""State of a Keras model that TensorFlow's checkpoints miss: metrics, seeds.

Keras keeps the states of metrics and random generators in objects that
TensorFlow's graph of objects does not reach.
"""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

# First part of the paths of this state in the graph of objects.
PATH = "tfps/"


def of(root: tf.train.Checkpoint) -> tf.train.Checkpoint:
    """Returns the state that a checkpoint has to list in addition.

    Returns:
        The variables of its models that TensorFlow cannot reach from `root`.
    """
    reachable = {id(one) for one in tf.train.TrackableView(root).descendants()}
    named = {}
    for number, model in enumerate(_models(root)):
        metrics = _states_of_metrics(model)
        # Named by number: the names that Keras generates depend on the other
        # objects of the program.
        for kind, variables in (
            ("metric", metrics),
            ("state", [v for v in model.variables if not _is_in(v, metrics)]),
        ):
            missed = [v for v in variables if id(v) not in reachable]
            reachable |= {id(v) for v in missed}
            for index, variable in enumerate(missed):
                named[f"model_{number}_{kind}_{index}"] = variable
    return tf.train.Checkpoint(**named)


def _is_in(variable: Any, variables: list[Any]) -> bool:
    return any(variable is one for one in variables)


def _models(root: tf.train.Checkpoint) -> Iterator[keras.Model]:
    for one in tf.train.TrackableView(root).descendants():
        if isinstance(one, keras.Model):
            yield one


def _states_of_metrics(model: keras.Model) -> list[Any]:
    if not model.compiled:
        return []
    return list(model.metrics_variables)
