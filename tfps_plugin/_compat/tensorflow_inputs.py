"""Private TensorFlow API: what datasets say about themselves."""

import re

import tensorflow as tf

# What a dataset says of an element that is None. No public name leads to it.
from tensorflow.python.framework.none_tensor import (
    NoneTensorSpec as NoneTensorSpec,
)


def is_dataset(variant: tf.Tensor) -> bool:
    """Returns whether an eager tensor of variant dtype is a dataset.

    TensorFlow tells what a variant holds only in its description.
    """
    return "::Dataset>" in repr(variant)


def kind_of_resource(handle: tf.Tensor) -> str:
    """Returns the kind of an eager handle: `IteratorResource`, `Var`, ...

    TensorFlow tells so only in the description of the handle; empty, if it
    does not.
    """
    found = re.search(r'type="(?:\w+::)*(\w+)"', repr(handle))
    return "" if found is None else found[1]


def options_of(dataset: tf.data.Dataset) -> tf.data.Options:
    """The options of a dataset; while a function is traced, as Python knows.

    `Dataset.options` warns then that there may be others: those of a dataset
    that came out of another function.
    """
    if tf.inside_function():
        return dataset._options_attr
    return dataset.options()
