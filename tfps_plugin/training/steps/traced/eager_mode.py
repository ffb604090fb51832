"""Eager mode, in which the steps of a model run on the chief."""

from typing import Any

import tensorflow as tf


def runs_eagerly(model: Any) -> bool:
    """Returns whether the steps of a model run eagerly.

    Returns:
        Whether `compile(run_eagerly=True)` or
        `tf.config.run_functions_eagerly(True)` is in force.
    """
    return bool(model.run_eagerly) or tf.config.functions_run_eagerly()
