"""Weights by which the values of workers count in a mean over examples.

A worker multiplies its values by its weight. The sum of all workers is divided
by the sum of their weights.
"""

from typing import Any

import tensorflow as tf

# float32 counts exactly up to its inverse. A gradient that was scaled to the
# end of its range would overflow if it were multiplied by a number of examples.
# A power of two changes the exponent of a number only, and so no result.
_OF_AN_EXAMPLE = 2.0**-24


def of(num_examples: Any, dtype: tf.DType) -> tf.Tensor:
    """Returns the weight of some examples, at most one for 2**24 of them.

    Args:
        num_examples: Number of examples, a scalar.
        dtype: Dtype of the values to weigh; float32, or one of more range.
    """
    return tf.cast(num_examples, dtype) * tf.cast(_OF_AN_EXAMPLE, dtype)
