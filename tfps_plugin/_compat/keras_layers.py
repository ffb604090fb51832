"""Private Keras API: the losses of a layer's weights.

Checked against Keras 3.12 to 3.15.
"""

# Variables seen in a stateless scope stand for other values.
from keras.src.backend.common.stateless_scope import (
    in_stateless_scope as in_stateless_scope,
)
