"""Tensors that are cut along one axis and joined along the other, in one go.

A layer of many features looks all of them up together and hands each its rows;
a model lays those of an example beside each other; and gradients come the same
way back. To cut and to join, TensorFlow copies all numbers twice, piece by
piece. It is a transposition of the pieces, which takes a third of the time.

Shape legend: F pieces, N rows of them all, B rows of each, D numbers in a row
of each.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin.transport import flattening
from tfps_plugin.transport import needed
from tfps_plugin.transport import reordering
from tfps_plugin.transport.flat_function import FlatFunction
from tfps_plugin.transport.flat_function import FlatOperation
from tfps_plugin.transport.flat_function import constant_scalar
from tfps_plugin.transport.waves import Output

# Fewer are cut and joined as fast.
_FEWEST_PIECES = 4


class _Cut(NamedTuple):
    """What was cut, and how.

    Attributes:
        whole: A matrix.
        axis: 0: its rows are shared out; 1: each row is.
        sizes: Along that axis, as one vector; or, of each piece, its shape.
    """

    whole: Output
    axis: int
    sizes: tuple[Output, ...]


def transpose(function: FlatFunction) -> FlatFunction:
    """Transposes what is cut one way and joined the other.

    Args:
        function: Its operations are not changed.

    Returns:
        The function; it returns the same, bit for bit.
    """
    operations = list(function.operations)
    instead: dict[Output, Output] = {}
    for number in range(function.num_arguments, len(function.operations)):
        cut = _cut(function.operations, number)
        if cut is None:
            continue
        flat = function.operations[number]
        first_new = len(operations)
        (result,) = flattening.splice(
            operations,
            _graph(function.operations, cut, flat),
            [cut.whole, *cut.sizes],
            flat.device,
            (),
        )
        for new in operations[first_new:]:
            new.step = flat.step
        instead[Output(number, 0)] = result
    if not instead:
        return function
    return needed.without_the_rest(
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
            )
        )
    )


def _replaced(
    outputs: Sequence[Output], instead: dict[Output, Output]
) -> tuple[Output, ...]:
    return tuple(instead.get(output, output) for output in outputs)


def _cut(operations: Sequence[FlatOperation], number: int) -> _Cut | None:
    """What an operation joins, if it is all that was cut the other way."""
    join = operations[number]
    if join.operation.type != "ConcatV2":
        return None
    *pieces, axis_input = join.inputs
    axis = _axis(operations, axis_input)
    makers = [operations[one] for one in {piece.node for piece in pieces}]
    if (
        len(pieces) < _FEWEST_PIECES
        or axis is None
        or any(one.controls or one.device != join.device for one in makers)
        or join.controls
        # Of matrices only, whose width is known.
        or join.operation.outputs[0].shape.rank != 2
        or join.operation.outputs[0].shape[1] is None
    ):
        return None
    cut = _cut_by_split(operations, pieces)
    cut = cut or _cut_by_slices(operations, pieces)
    return cut if cut is not None and cut.axis != axis else None


def _axis(operations: Sequence[FlatOperation], output: Output) -> int | None:
    """An axis of a matrix, 0 or 1; None: nobody knows."""
    maker = operations[output.node]
    if maker.operation.type == "FloorMod":
        # Gradients count it from the front, by what is known all the same.
        axis, rank = (constant_scalar(operations, one) for one in maker.inputs)
        return None if rank != 2 else axis % rank
    axis = constant_scalar(operations, output)
    return axis % 2 if axis in (-2, -1, 0, 1) else None


def _cut_by_split(
    operations: Sequence[FlatOperation], pieces: Sequence[Output]
) -> _Cut | None:
    """What an operation cut into just these pieces."""
    number = pieces[0].node
    split = operations[number]
    sizes: list[Output] = []
    if split.operation.type == "Split":
        axis_input, whole = split.inputs
    elif split.operation.type == "SplitV":
        whole, *sizes, axis_input = split.inputs
    else:
        return None
    axis = _axis(operations, axis_input)
    num_pieces = len(split.operation.outputs)
    if axis is None or list(pieces) != [
        Output(number, index) for index in range(num_pieces)
    ]:
        return None
    return _Cut(whole, axis, tuple(sizes))


def _cut_by_slices(
    operations: Sequence[FlatOperation], pieces: Sequence[Output]
) -> _Cut | None:
    """What was cut into these pieces, one by one.

    So do TensorFlow's gradients of a few tensors that were joined: each begins
    where `ConcatOffset` says, and is as large as that was told.
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
    axis = _axis(operations, axis_input)
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
    """A function of what was cut, and of sizes: what is joined of it."""
    num_pieces = len(join.inputs) - 1
    width = join.operation.outputs[0].shape[1]

    @tf.autograph.experimental.do_not_convert
    def transposed(whole: tf.Tensor, *sizes: tf.Tensor) -> tf.Tensor:
        if len(sizes) == num_pieces:
            shapes_F2 = tf.stack(sizes)
            shape, sizes_F = shapes_F2[0], shapes_F2[:, cut.axis]
        else:
            shape = tf.shape(whole)
            sizes_F = tf.cast(sizes[0], shape.dtype) if sizes else None
        if sizes_F is None:
            size = shape[cut.axis] // num_pieces
        else:
            # Such a shape is refused: pieces of several sizes fit no more than
            # in what this stands for.
            size = tf.where(
                tf.reduce_all(tf.equal(sizes_F, sizes_F[0])), sizes_F[0], -2
            )
        if cut.axis == 0:
            apart = [num_pieces, size, shape[1]]
        else:
            apart = [shape[0], num_pieces, size]
        pieces = tf.transpose(tf.reshape(whole, apart), [1, 0, 2])
        return tf.reshape(pieces, [-1, width])

    specs = [
        tf.TensorSpec(tensor.shape, tensor.dtype)
        for tensor in (
            operations[node].operation.outputs[index]
            for node, index in (cut.whole, *cut.sizes)
        )
    ]
    return tf.function(transposed).get_concrete_function(*specs).graph
