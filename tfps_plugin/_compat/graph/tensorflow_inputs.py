"""Private TensorFlow API: kinds and options of datasets and iterators."""

import re

import tensorflow as tf

# Spec of an element that is None. It has no public name.
from tensorflow.python.framework.none_tensor import (
    NoneTensorSpec as NoneTensorSpec,
)


def is_dataset(variant: tf.Tensor) -> bool:
    """Returns whether an eager tensor of variant dtype is a dataset.

    TensorFlow describes the content of a variant only in its `repr`.
    """
    return "::Dataset>" in repr(variant)


def kind_of_resource(handle: tf.Tensor) -> str:
    """Returns the kind of an eager handle: `IteratorResource`, `Var`, ...

    TensorFlow names it only in the `repr` of the handle; empty if it does not.
    """
    found = re.search(r'type="(?:\w+::)*(\w+)"', repr(handle))
    return "" if found is None else found[1]


def options_of(dataset: tf.data.Dataset) -> tf.data.Options:
    """Returns the options of a dataset; in a traced function, those of Python.

    `Dataset.options` warns there that a dataset from another function may have
    other options.
    """
    if tf.inside_function():
        return dataset._options_attr
    return dataset.options()
