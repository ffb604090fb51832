"""Features that are columns of one matrix.

Ids often arrive as one matrix with a column for each feature, as in Criteo's
data. A model takes it apart (`ids[:, 3]`) and passes the features to a layer,
which joins them again. A layer that detects this needs only one transposition,
and knows that all features have the same number of ids.

Shape legend: F features, B examples, C columns.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

# Smallest share of the columns for which it pays to transpose all of them.
_LEAST_SHARE = 0.5
# Fewer features are joined just as fast without a transposition.
_FEWEST = 4

# Masks of `matrix[:, number]`: all of the first axis, one index of the second.
_MASKS = {
    "begin_mask": 0b01,
    "end_mask": 0b01,
    "shrink_axis_mask": 0b10,
    "ellipsis_mask": 0,
    "new_axis_mask": 0,
}


class Columns(NamedTuple):
    """The columns of a matrix that features come from.

    Attributes:
        matrix_BC: The matrix.
        numbers: The number of the column of each feature.
    """

    matrix_BC: tf.Tensor
    numbers: list[int]

    def side_by_side(self) -> tf.Tensor:
        """Returns the features, shape `(F, B)`."""
        columns_CB = tf.transpose(self.matrix_BC)
        if self.numbers == list(range(self.matrix_BC.shape[1])):
            return columns_CB
        return tf.gather(columns_CB, self.numbers)


def columns_of_one_matrix(features: Sequence[tf.Tensor]) -> Columns | None:
    """Returns the matrix that all features are columns of.

    Args:
        features: Ids of each feature. Only symbolic tensors of rank 1 can be
            columns.

    Returns:
        The matrix and the columns; None if there is no such matrix, or if it
        gains nothing.
    """
    found = [each for each in map(_column, features) if each is not None]
    if len(found) < max(_FEWEST, len(features)):
        return None
    matrices, numbers = zip(*found, strict=True)
    if any(each is not matrices[0] for each in matrices):
        return None
    if len(set(numbers)) < _LEAST_SHARE * matrices[0].shape[1]:
        return None
    return Columns(matrices[0], list(numbers))


def _column(feature: tf.Tensor) -> tuple[tf.Tensor, int] | None:
    """Returns the matrix that a feature was cut from, and its column."""
    if not tf.is_symbolic_tensor(feature) or feature.op.type != "StridedSlice":
        return None
    slicing = feature.op
    matrix, *bounds = slicing.inputs
    if any(map(_waits, [slicing, *(one.op for one in bounds)])):
        # Users of the ids must wait for the same operations.
        return None
    begin_input, _, strides_input = bounds
    begin = tf.get_static_value(begin_input)
    strides = tf.get_static_value(strides_input)
    if (
        matrix.shape.rank != 2
        or not matrix.shape[1]
        or begin is None
        or strides is None
        or strides[0] != 1
        or any(slicing.get_attr(name) != mask for name, mask in _MASKS.items())
        # The static width may have become known after the slicing.
        or not -matrix.shape[1] <= begin[1] < matrix.shape[1]
    ):
        return None
    return matrix, int(begin[1]) % int(matrix.shape[1])


def _waits(operation: tf.Operation) -> bool:
    """Returns whether it waits for more than the start of its function.

    All operations of a step of `fit` wait for its batch, an argument.
    """
    return any(one.type != "Placeholder" for one in operation.control_inputs)
