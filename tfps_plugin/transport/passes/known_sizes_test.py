"""Tests of what is known of axes and sizes before a function runs."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.transport.passes import known_sizes
from tfps_plugin.transport.passes.inlining import flatten

_NUM = 5
_KNOWN = tf.TensorSpec([None, 3])
_UNKNOWN = tf.TensorSpec([None, None])


def _known(
    told: Callable[[Sequence[tf.Tensor]], Any], spec: tf.TensorSpec, axis: int
) -> list[int] | None:
    """What is known of matrices whose sizes a function returns."""

    @tf.function
    def function(*matrices: tf.Tensor) -> Any:
        return told(matrices)

    concrete = function.get_concrete_function(*[spec] * _NUM)
    flat = flatten(concrete.graph)
    # What a function returns has passed through an operation.
    outputs = [flat.operations[one.node].inputs[0] for one in flat.outputs]
    return known_sizes.sizes_along(flat.operations, outputs, axis)


def _shapes(matrices: Sequence[tf.Tensor]) -> Any:
    return tf.raw_ops.ShapeN(input=matrices)


def _in_a_row(axis: Any, *, column: Any = 0, stacked_along: int = 1) -> Any:
    """As TensorFlow's gradient of many tensors that were joined."""

    def told(matrices: Sequence[tf.Tensor]) -> tf.Tensor:
        columns = tf.stack(_shapes(matrices), stacked_along)
        begin = tf.raw_ops.Pack(values=[tf.constant(axis) % 2, column])
        return tf.squeeze(tf.slice(columns, begin, [1, -1]))

    return told


@pytest.mark.parametrize("told", [_shapes, _in_a_row(1), _in_a_row(-1)])
def test_widths_are_known(told: Any) -> None:
    assert _known(told, _KNOWN, 1) == [3] * _NUM
    assert _known(told, _UNKNOWN, 1) is None


@pytest.mark.parametrize("told", [_shapes, _in_a_row(0)])
def test_numbers_of_rows_are_not(told: Any) -> None:
    assert _known(told, _KNOWN, 0) is None


def test_matrices_of_several_widths() -> None:
    def told(matrices: Sequence[tf.Tensor]) -> Any:
        wider = [
            tf.ensure_shape(m, [None, 3 + n]) for n, m in enumerate(matrices)
        ]
        return _shapes(wider)

    assert _known(told, _UNKNOWN, 1) == [3, 4, 5, 6, 7]


def _after_a_check(matrices: Sequence[tf.Tensor]) -> Any:
    check = tf.raw_ops.Assert(
        condition=tf.size(matrices[0]) > 0, data=["nothing"]
    )
    with tf.control_dependencies([check]):
        return _shapes(matrices)


@pytest.mark.parametrize(
    "told",
    [
        # Of the other axis.
        _in_a_row(0),
        _in_a_row(1, column=1),
        _in_a_row(1, stacked_along=0),
        _after_a_check,
        lambda matrices: [shape + 1 for shape in _shapes(matrices)],
        lambda matrices: _in_a_row(1)(matrices) + 1,
        lambda matrices: _shapes([m[None] for m in matrices]),
    ],
    ids=[
        "other axis",
        "other columns",
        "other stack",
        "waits",
        "computed",
        "computed in a row",
        "no matrices",
    ],
)
def test_anything_else_is_not_known(told: Any) -> None:
    assert _known(told, _KNOWN, 1) is None
