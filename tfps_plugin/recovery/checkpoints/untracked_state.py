"""What TensorFlow's checkpoints miss of a Keras model: metrics and seeds.

Keras keeps the states of metrics and of random generators where TensorFlow's
graph of objects does not lead.
"""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf


def of(root: tf.train.Checkpoint) -> tf.train.Checkpoint:
    """What a checkpoint has to list beside what it finds by itself.

    Args:
        root: What is saved.

    Returns:
        The variables of its models that cannot be reached from `root`.
    """
    reachable = {id(one) for one in tf.train.TrackableView(root).descendants()}
    named = {}
    for number, model in enumerate(_models(root)):
        metrics = _states_of_metrics(model)
        # By number: names that Keras makes up depend on what else the program
        # has made.
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
