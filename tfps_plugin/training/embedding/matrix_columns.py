"""Features that are columns of one matrix.

Ids often come as one matrix, a column for each feature, as in Criteo's data;
a model takes it apart (`ids[:, 3]`) and hands the features to a layer, which
puts them together again. Who sees that gets all of them with a transposition,
and knows that they have as many ids each.

Shape legend: F features, B examples, C columns.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

# Of the columns. Where fewer are used, to transpose all of them does not pay.
_LEAST_SHARE = 0.5
# Fewer features are put together as fast.
_FEWEST = 4

# Of `matrix[:, number]`: the first axis from end to end, one of the second.
_MASKS = {
    "begin_mask": 0b01,
    "end_mask": 0b01,
    "shrink_axis_mask": 0b10,
    "ellipsis_mask": 0,
    "new_axis_mask": 0,
}


class Columns(NamedTuple):
    """Where features come from.

    Attributes:
        matrix_BC: The matrix.
        numbers: Of the columns, of each feature one.
    """

    matrix_BC: tf.Tensor
    numbers: list[int]

    def side_by_side(self) -> tf.Tensor:
        """The features, shape `(F, B)`."""
        columns_CB = tf.transpose(self.matrix_BC)
        if self.numbers == list(range(self.matrix_BC.shape[1])):
            return columns_CB
        return tf.gather(columns_CB, self.numbers)


def columns_of_one_matrix(features: Sequence[tf.Tensor]) -> Columns | None:
    """The matrix that all features are columns of.

    Args:
        features: Of rank 1, in a function that is being traced; others are
            none.

    Returns:
        None if there is no such matrix, or nothing is gained by it.
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
    """The matrix that a feature was cut out of, and the column's number."""
    if not tf.is_symbolic_tensor(feature) or feature.op.type != "StridedSlice":
        return None
    slicing = feature.op
    matrix, *bounds = slicing.inputs
    if any(map(_waits, [slicing, *(one.op for one in bounds)])):
        # Who is told the ids waits for the same.
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
        # Its width may have become known later.
        or not -matrix.shape[1] <= begin[1] < matrix.shape[1]
    ):
        return None
    return matrix, int(begin[1]) % int(matrix.shape[1])


def _waits(operation: tf.Operation) -> bool:
    """Whether it runs after anything but the start of its function.

    A step of `fit` has all of its operations after its batch, an argument.
    """
    return any(one.type != "Placeholder" for one in operation.control_inputs)
