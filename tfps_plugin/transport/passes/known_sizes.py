"""Axes and sizes of matrices that are known before a function runs.

TensorFlow's gradient of a concatenation computes shapes and offsets when the
step runs, although both are mostly known when it is traced.
"""

from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin.transport.flat_function import FlatOperation
from tfps_plugin.transport.flat_function import constant_scalar
from tfps_plugin.transport.waves import Output


def axis_of_matrix(
    operations: Sequence[FlatOperation], output: Output
) -> int | None:
    """Returns an axis, 0 or 1; None if it is unknown, or not of a matrix."""
    maker = operations[output.node]
    if maker.controls:
        # Readers of the axis wait for these as well.
        return None
    if maker.operation.type == "FloorMod":
        # TensorFlow's gradients count an axis from the front like this.
        axis, rank = maker.inputs
        if operations[rank.node].controls:
            return None
        known = axis_of_matrix(operations, axis)
        return known if constant_scalar(operations, rank) == 2 else None
    axis = constant_scalar(operations, output)
    return axis % 2 if axis in (-2, -1, 0, 1) else None


def sizes_along(
    operations: Sequence[FlatOperation], told: Sequence[Output], axis: int
) -> list[int] | None:
    """Returns the sizes of matrices along an axis.

    Args:
        operations: Operations of the function.
        told: The tensors that hold them when it runs: the shape of each
            matrix, or all sizes as one vector.
        axis: 0 or 1.

    Returns:
        The sizes; None if they are not all known, or not computed in the way
        of TensorFlow's gradients.
    """
    shapes: Sequence[Output] | None = told
    if len(told) == 1:
        shapes = _of_one_vector(operations, told[0], axis)
    if shapes is None:
        return None
    sizes = [_size(operations, shape, axis) for shape in shapes]
    known = [size for size in sizes if size is not None]
    return known if len(known) == len(sizes) else None


def _of_one_vector(
    operations: Sequence[FlatOperation], sizes: Output, axis: int
) -> Sequence[Output] | None:
    """Returns the shapes that a vector of sizes along an axis is a row of."""
    # Shapes are columns, and a row of them is what is wanted.
    squeezed = _inputs(operations, sizes, "Squeeze")
    sliced = squeezed and _inputs(operations, squeezed[0], "Slice")
    if not sliced:
        return None
    columns, begin, extent = sliced
    shapes = _inputs(operations, columns, "Pack")
    first = _inputs(operations, begin, "Pack")
    if not shapes or not first or len(first) != 2:
        return None
    is_a_row = (
        operations[columns.node].operation.get_attr("axis") == 1
        and axis_of_matrix(operations, first[0]) == axis
        and _constant(operations, first[1]) == 0
        and _constant(operations, extent) == [1, -1]
    )
    return shapes if is_a_row else None


def _size(
    operations: Sequence[FlatOperation], shape: Output, axis: int
) -> int | None:
    """Returns the size of the matrix whose shape an output holds."""
    for kind in ("Shape", "ShapeN"):
        of = _inputs(operations, shape, kind)
        if of:
            node, index = of[shape.number]
            known = operations[node].operation.outputs[index].shape
            return known[axis] if known.rank == 2 else None
    return None


def _inputs(
    operations: Sequence[FlatOperation], output: Output, kind: str
) -> tuple[Output, ...] | None:
    """Returns the inputs of an operation of a type without control inputs."""
    maker = operations[output.node]
    if maker.operation.type != kind or maker.controls:
        return None
    return maker.inputs


def _constant(
    operations: Sequence[FlatOperation], output: Output
) -> int | list[int] | None:
    maker = operations[output.node]
    if maker.operation.type != "Const" or maker.controls:
        return None
    value: int | list[int] = tf.get_static_value(
        maker.operation.outputs[0]
    ).tolist()
    return value
