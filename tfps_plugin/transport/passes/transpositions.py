"""Replacement of a split and a concatenation by a transpose.

A layer of many features looks them all up together and gives each feature its
rows. A model then concatenates the rows of an example, and gradients take the
same way back. A split along one axis and a concatenation along the other copy
all numbers twice, piece by piece. Together they are a transpose of the pieces,
which takes a third to a half of the time on a CPU.

Shape legend: F pieces, N rows of them all, B rows of each, D numbers in a row
of each.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin.transport.flat_function import FlatFunction
from tfps_plugin.transport.flat_function import FlatOperation
from tfps_plugin.transport.passes import dead_code
from tfps_plugin.transport.passes import inlining
from tfps_plugin.transport.passes import reordering
from tfps_plugin.transport.passes.known_sizes import axis_of_matrix
from tfps_plugin.transport.passes.known_sizes import sizes_along
from tfps_plugin.transport.waves import Output

# Fewer are cut and joined as fast.
_FEWEST_PIECES = 4
_CPU = "/device:CPU:0"


class _Cut(NamedTuple):
    """A matrix that was split.

    Attributes:
        whole: The matrix.
        axis: The axis that it was split along.
        sizes: The sizes of the pieces along that axis, as one vector; or the
            shape of each piece. Empty if all have the same size.
    """

    whole: Output
    axis: int
    sizes: tuple[Output, ...]


def transpose(function: FlatFunction) -> FlatFunction:
    """Transposes what is split along one axis and joined along the other.

    Args:
        function: Its operations are not changed.

    Returns:
        The function. It returns the same, bit for bit, and raises the same
        errors.
    """
    operations = list(function.operations)
    instead: dict[Output, Output] = {}
    turns: dict[int, int] = {}
    for number in range(function.num_arguments, len(function.operations)):
        cut = _cut(function.operations, number)
        if cut is None:
            continue
        flat = function.operations[number]
        first_new = len(operations)
        (result,) = inlining.splice(
            operations,
            _graph(function.operations, cut, flat),
            [cut.whole, *cut.sizes],
            flat.device,
            (),
        )
        for new in range(first_new, len(operations)):
            operations[new].step = flat.step
            turns[new] = number
        instead[Output(number, 0)] = result
    if not instead:
        return function
    return dead_code.eliminate(
        reordering.in_order(
            FlatFunction(
                [
                    dataclasses.replace(
                        flat, inputs=_replaced(flat.inputs, instead)
                    )
                    for flat in operations
                ],
                function.num_arguments,
                _replaced(function.outputs, instead),
                function.controls,
            ),
            turns=turns,
        )
    )


def _replaced(
    outputs: Sequence[Output], instead: dict[Output, Output]
) -> tuple[Output, ...]:
    return tuple(instead.get(output, output) for output in outputs)


def _cut(operations: Sequence[FlatOperation], number: int) -> _Cut | None:
    """Returns the matrix whose pieces an operation joins the other way."""
    join = operations[number]
    if join.operation.type != "ConcatV2":
        return None
    *pieces, axis_input = join.inputs
    axis = axis_of_matrix(operations, axis_input)
    makers = [operations[one] for one in {piece.node for piece in pieces}]
    if (
        len(pieces) < _FEWEST_PIECES
        or axis is None
        or any(one.controls or one.device != join.device for one in makers)
        or join.controls
        # Of matrices only, whose width is known.
        or join.operation.outputs[0].shape.rank != 2
        or not join.operation.outputs[0].shape[1]
    ):
        return None
    cut = _cut_by_split(operations, pieces)
    cut = cut or _cut_by_slices(operations, pieces)
    if cut is None or cut.axis == axis:
        return None
    if _are_equal(operations, cut, len(pieces)):
        cut = cut._replace(sizes=())
    return cut


def _are_equal(
    operations: Sequence[FlatOperation], cut: _Cut, num_pieces: int
) -> bool:
    """Returns whether all pieces are known to have the same size."""
    node, index = cut.whole
    shape = operations[node].operation.outputs[index].shape
    sizes = sizes_along(operations, cut.sizes, cut.axis) if cut.sizes else None
    return bool(
        sizes
        and shape.rank == 2
        and shape[cut.axis] == num_pieces * sizes[0]
        and sizes == num_pieces * sizes[:1]
    )


def _cut_by_split(
    operations: Sequence[FlatOperation], pieces: Sequence[Output]
) -> _Cut | None:
    """Returns the matrix that one operation split into just these pieces."""
    number = pieces[0].node
    split = operations[number]
    sizes: list[Output] = []
    if split.operation.type == "Split":
        axis_input, whole = split.inputs
    elif split.operation.type == "SplitV":
        whole, *sizes, axis_input = split.inputs
    else:
        return None
    axis = axis_of_matrix(operations, axis_input)
    num_pieces = len(split.operation.outputs)
    if axis is None or list(pieces) != [
        Output(number, index) for index in range(num_pieces)
    ]:
        return None
    return _Cut(whole, axis, tuple(sizes))


def _cut_by_slices(
    operations: Sequence[FlatOperation], pieces: Sequence[Output]
) -> _Cut | None:
    """Returns the matrix that was sliced into these pieces.

    TensorFlow's gradient of a concatenation of few tensors does this: each
    slice begins where `ConcatOffset` says, and is as large as its input says.
    Only gradients make that operation, and there the slices cover the whole.
    """
    slices = [operations[piece.node] for piece in pieces]
    if any(one.operation.type != "Slice" for one in slices):
        return None
    wholes, begins, shapes = zip(*(one.inputs for one in slices), strict=True)
    number = begins[0].node
    offsets = operations[number]
    if offsets.operation.type != "ConcatOffset":
        return None
    axis_input, *told = offsets.inputs
    axis = axis_of_matrix(operations, axis_input)
    if (
        axis is None
        or len(set(wholes)) != 1
        or list(begins) != [Output(number, n) for n in range(len(told))]
        or list(shapes) != told
    ):
        return None
    return _Cut(wholes[0], axis, tuple(told))


def _graph(
    operations: Sequence[FlatOperation], cut: _Cut, join: FlatOperation
) -> Any:
    """Returns the graph that computes the result from the whole and sizes."""
    num_pieces = len(join.inputs) - 1
    joined_shape = join.operation.outputs[0].shape

    @tf.autograph.experimental.do_not_convert
    def transposed(whole: tf.Tensor, *sizes: tf.Tensor) -> tf.Tensor:
        # Few numbers, which GPUs would send back and forth.
        with tf.device(_CPU):
            shape = tf.shape(whole)
            size = shape[cut.axis] // num_pieces
            checks = []
            if sizes:
                sizes_F = sizes[0]
                if len(sizes) == num_pieces:
                    sizes_F = tf.stack(sizes)[:, cut.axis]
                # Of one, -1 may stand for what is left.
                is_right_F = (sizes_F == tf.cast(size, sizes_F.dtype)) | (
                    sizes_F == -1
                )
                checks.append(
                    tf.raw_ops.Assert(
                        condition=tf.reduce_all(is_right_F),
                        data=[
                            f"{join.operation.name}: pieces that are joined "
                            "along another axis than they were cut along are "
                            "expected to have the same size. Received: sizes =",
                            sizes_F,
                        ],
                        summarize=num_pieces,
                    )
                )
            apart = [shape[0], num_pieces, size]
            if cut.axis == 0:
                apart = [num_pieces, size, shape[1]]
        with tf.control_dependencies(checks):
            pieces = tf.reshape(whole, apart)
        result = tf.reshape(
            tf.transpose(pieces, [1, 0, 2]), [-1, joined_shape[1]]
        )
        result.set_shape(joined_shape)
        return result

    specs = [
        tf.TensorSpec(tensor.shape, tensor.dtype)
        for tensor in (
            operations[node].operation.outputs[index]
            for node, index in (cut.whole, *cut.sizes)
        )
    ]
    return tf.function(transposed).get_concrete_function(*specs).graph
