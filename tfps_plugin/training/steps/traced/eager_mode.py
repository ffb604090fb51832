"""Whether the steps of a model run operation by operation, on the chief."""

from typing import Any

import tensorflow as tf


def runs_eagerly(model: Any) -> bool:
    """Whether a model or the whole program asks for it.

    Args:
        model: A Keras model, which `compile(run_eagerly=True)` may have set.

    Returns:
        Whether that, or `tf.config.run_functions_eagerly(True)`, is in force.
    """
    return bool(model.run_eagerly) or tf.config.functions_run_eagerly()
