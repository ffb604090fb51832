"""Private Keras API: the losses of a layer's weights.

Checked against Keras 3.12 to 3.15.
"""

from collections.abc import Callable
from typing import Any

import keras

# Variables seen in a stateless scope stand for other values.
from keras.src.backend.common.stateless_scope import (
    in_stateless_scope as in_stateless_scope,
)


def get_regularization_losses() -> Callable[[Any], list[Any]]:
    """What makes the penalties of a layer's own weights."""
    return keras.Layer._get_regularization_losses


def set_regularization_losses(function: Callable[[Any], list[Any]]) -> None:
    """Has every layer make the penalties of its weights with `function`."""
    keras.Layer._get_regularization_losses = function
