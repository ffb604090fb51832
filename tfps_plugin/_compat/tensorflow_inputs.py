"""Private TensorFlow API: what datasets say about their elements."""

# What a dataset says of an element that is None. No public name leads to it.
from tensorflow.python.framework.none_tensor import (
    NoneTensorSpec as NoneTensorSpec,
)
