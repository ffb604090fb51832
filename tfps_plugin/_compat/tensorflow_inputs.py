"""Private TensorFlow API: what datasets say about themselves."""

import tensorflow as tf

# What a dataset says of an element that is None. No public name leads to it.
from tensorflow.python.framework.none_tensor import (
    NoneTensorSpec as NoneTensorSpec,
)


def options_of(dataset: tf.data.Dataset) -> tf.data.Options:
    """The options of a dataset; while a function is traced, as Python knows.

    `Dataset.options` warns then that there may be others: those of a dataset
    that came out of another function.
    """
    if tf.inside_function():
        return dataset._options_attr
    return dataset.options()
