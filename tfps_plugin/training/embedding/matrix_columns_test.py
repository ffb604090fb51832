"""Tests of features that are columns of one matrix."""

from collections.abc import Callable
from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tfps_plugin.training.embedding.matrix_columns import Columns
from tfps_plugin.training.embedding.matrix_columns import columns_of_one_matrix

_WIDTH = 6


def _found(
    cut: Callable[[tf.Tensor], Sequence[tf.Tensor]],
) -> tuple[Columns | None, np.ndarray | None]:
    """Returns the columns that are found, and their ids of a small matrix."""
    seen: list[Columns | None] = []

    @tf.function(input_signature=[tf.TensorSpec([None, _WIDTH], tf.int64)])
    def side_by_side(matrix_BC: tf.Tensor) -> tf.Tensor:
        columns = columns_of_one_matrix(cut(matrix_BC))
        seen.append(columns)
        return tf.constant(0) if columns is None else columns.side_by_side()

    ids_BC = np.arange(4 * _WIDTH).reshape(4, _WIDTH)
    result = side_by_side(tf.constant(ids_BC)).numpy()
    return seen[0], None if seen[0] is None else result


def _after(matrix: tf.Tensor, number: int) -> tf.Tensor:
    check = tf.debugging.Assert(tf.size(matrix) > 0, ["nothing"])
    with tf.control_dependencies([check]):
        return matrix[:, number]


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(-_WIDTH, _WIDTH - 1), min_size=4, max_size=8).filter(
        lambda numbers: len({n % _WIDTH for n in numbers}) >= 3
    )
)
def test_columns_in_any_order_lie_side_by_side(numbers: list[int]) -> None:
    _, found = _found(lambda matrix: [matrix[:, n] for n in numbers])
    ids_BC = np.arange(4 * _WIDTH).reshape(4, _WIDTH)
    assert found is not None
    np.testing.assert_array_equal(found, ids_BC[:, numbers].T)


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: [x[:, 0], x[:, 1], x[:, 2]],
        lambda x: [x[:, 0], x[:, 1], x[:, 1], x[:, 0]],
        lambda x: [x[n] for n in range(4)],
        lambda x: [x[1:, n] for n in range(4)],
        lambda x: [x[:2, n] for n in range(4)],
        lambda x: [x[::2, n] for n in range(4)],
        lambda x: [x[::-1, n] for n in range(4)],
        lambda x: [x[:, n : n + 2] for n in range(4)],
        lambda x: [x[..., n] for n in range(4)],
        lambda x: [x[:, n, None] for n in range(4)],
        lambda x: [*(x[:, n] for n in range(4)), x[:, 4] + 1],
        lambda x: [*(x[:, n] for n in range(4)), (x + 1)[:, 4]],
        lambda x: [_after(x, n) for n in range(4)],
        lambda x: [x[:, tf.size(x) - tf.size(x) + n] for n in range(4)],
    ],
    ids=[
        "few",
        "few columns",
        "rows",
        "not from the start",
        "not to the end",
        "every other",
        "backwards",
        "several columns",
        "an ellipsis",
        "a new axis",
        "one is computed",
        "of another matrix",
        "wait for something",
        "unknown numbers",
    ],
)
def test_anything_else_is_left_alone(
    cut: Callable[[tf.Tensor], Sequence[tf.Tensor]],
) -> None:
    assert _found(cut)[0] is None


def test_what_waits_for_arguments_waits_for_nothing() -> None:
    def cut(matrix: tf.Tensor) -> list[tf.Tensor]:
        with tf.control_dependencies([matrix]):
            return [matrix[:, n] for n in range(4)]

    _, found = _found(cut)
    assert found is not None
    np.testing.assert_array_equal(found[2], [2, 8, 14, 20])


def test_outside_of_functions_nobody_knows() -> None:
    matrix = tf.zeros([2, 4], tf.int64)
    assert columns_of_one_matrix([matrix[:, n] for n in range(4)]) is None
