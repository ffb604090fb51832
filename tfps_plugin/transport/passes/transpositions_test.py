"""Tests of what is cut along one axis and joined along the other."""

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tfps_plugin.transport import fusion
from tfps_plugin.transport.passes import common_subexpressions
from tfps_plugin.transport.passes import transpositions
from tfps_plugin.transport.passes.inlining import flatten

_PS = "/job:localhost/replica:0/task:0/device:CPU:0"

_Join = Callable[[Sequence[tf.Tensor]], tf.Tensor]


def _fused(
    function: Callable[..., Any], *specs: tf.TensorSpec
) -> tuple[Callable[..., Any], Callable[..., Any], Counter[str]]:
    """A function, what is called in its place, and what that does here."""

    def step(*given: tf.Tensor) -> Any:
        with tf.device(_PS):
            # Something has to travel, or nothing is made anew.
            given = tuple(tf.identity(one) for one in given)
        return function(*given)

    with tf.device(None):
        concrete = tf.function(step).get_concrete_function(*specs)
    fused = fusion.fuse(concrete)
    assert fused is not concrete
    # Without what packs and unpacks.
    flat = transpositions.transpose(
        common_subexpressions.merge(flatten(concrete.graph))
    )
    return concrete, fused, Counter(o.operation.type for o in flat.operations)


def _by_number(whole: tf.Tensor, num: int, axis: int) -> list[tf.Tensor]:
    pieces: list[tf.Tensor] = tf.split(whole, num, axis)
    return pieces


def _by_sizes(whole: tf.Tensor, num: int, axis: int) -> list[tf.Tensor]:
    size = tf.shape(whole)[axis] // num
    pieces: list[tf.Tensor] = tf.split(
        whole, tf.fill([num], size), axis, num=num
    )
    return pieces


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from([_by_number, _by_sizes]),
    st.integers(4, 20),
    st.integers(0, 4),
    st.integers(1, 3),
    st.sampled_from([0, 1]),
    st.sampled_from(["float32", "int64"]),
)
def test_the_same_comes_out_by_a_transposition(
    cut: Any, num: int, rows: int, width: int, axis: int, dtype: str
) -> None:
    shape = [num * rows, width] if axis == 0 else [rows, num * width]
    value = tf.reshape(tf.range(num * rows * width), shape)
    value = tf.cast(value, dtype)

    def function(whole: tf.Tensor) -> tf.Tensor:
        pieces = cut(whole, num, axis)
        for piece in pieces:
            piece.set_shape([None, width])
        return tf.concat(pieces, axis - 1)

    concrete, fused, types = _fused(
        function, tf.TensorSpec([None, shape[1]], dtype)
    )
    np.testing.assert_array_equal(fused(value), concrete(value))
    assert "Transpose" in types
    assert types.keys().isdisjoint({"ConcatV2", "Split", "SplitV"})


# Up to sixteen, TensorFlow cuts gradients by slices; more, by a split.
@pytest.mark.parametrize("num", [5, 17])
def test_gradients_come_back_by_a_transposition(num: int) -> None:
    def function(rows_ND: tf.Tensor, counts_F: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(rows_ND)
            pieces = tf.split(rows_ND, counts_F, num=num)
            joined_BN = tf.concat(pieces, -1)
            loss = tf.reduce_sum(tf.sin(joined_BN * joined_BN))
        gradient = tape.gradient(loss, rows_ND)
        gradient.set_shape([None, 3])
        return joined_BN, gradient

    concrete, fused, types = _fused(
        function, tf.TensorSpec([None, 3]), tf.TensorSpec([num], tf.int32)
    )
    rows_ND = tf.random.stateless_normal([num * 4, 3], [1, 2])
    counts_F = tf.fill([num], 4)
    for mine, theirs in zip(
        fused(rows_ND, counts_F), concrete(rows_ND, counts_F), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    assert types["Transpose"] == 2
    # How wide the pieces of the gradient are is known, and nothing is cut to
    # find it out.
    assert types.keys().isdisjoint({"ConcatV2", "SplitV", "Slice", "ShapeN"})
    # How many rows each piece has is not.
    assert types["Assert"] == 1


@pytest.mark.parametrize("num", [5, 17])
def test_gradients_whose_sizes_only_the_step_knows(num: int) -> None:
    def function(wide_BM: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(wide_BM)
            joined_ND = tf.concat(tf.split(wide_BM, num, 1), 0)
            loss = tf.reduce_sum(tf.sin(joined_ND * joined_ND))
        return joined_ND, tape.gradient(loss, wide_BM)

    concrete, fused, types = _fused(function, tf.TensorSpec([None, num * 3]))
    wide_BM = tf.random.stateless_normal([4, num * 3], [1, 2])
    for mine, theirs in zip(fused(wide_BM), concrete(wide_BM), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert types["Transpose"] == 2
    assert "ConcatV2" not in types
    # Whose pieces tell the shapes of those of the gradient: no more than that.
    assert types["Split"] == types["Assert"] == 1
    # Of the sizes, but none of the numbers.
    assert types["Slice"] <= 1


@pytest.mark.parametrize("counts", [[1, 1, 1, 5], [3, 3, 3, -1], [2, 2, 2, 3]])
def test_pieces_of_several_sizes_are_an_error_as_ever(
    counts: list[int],
) -> None:
    def function(rows_ND: tf.Tensor, counts_F: tf.Tensor) -> Any:
        return tf.concat(tf.split(rows_ND, counts_F, num=4), 1)

    concrete, fused, types = _fused(
        function, tf.TensorSpec([None, 3]), tf.TensorSpec([4], tf.int32)
    )
    assert "Transpose" in types
    rows_ND = tf.ones([8, 3])
    with pytest.raises(tf.errors.InvalidArgumentError):
        concrete(rows_ND, tf.constant(counts))
    with pytest.raises(tf.errors.InvalidArgumentError, match="the same size"):
        fused(rows_ND, tf.constant(counts))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("counts", [[2, 2, 2, -1], [-1, 2, 2, 2]])
def test_a_size_may_be_what_is_left(counts: list[int], dtype: str) -> None:
    def function(rows_ND: tf.Tensor, counts_F: tf.Tensor) -> Any:
        return (
            tf.concat(tf.split(rows_ND, counts_F, num=4), 1),
            tf.concat(tf.split(rows_ND, counts), 1),
        )

    concrete, fused, types = _fused(
        function, tf.TensorSpec([None, 3]), tf.TensorSpec([4], dtype)
    )
    assert types["Transpose"] == 2
    given = tf.random.stateless_normal([8, 3], [1, 2]), tf.cast(counts, dtype)
    for mine, theirs in zip(fused(*given), concrete(*given), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_what_is_cut_and_joined_again_and_again_is_transposed() -> None:
    def function(names_ND: tf.Tensor) -> tf.Tensor:
        for axis in (1, 0, 1):
            names_ND = tf.concat(tf.split(names_ND, 4, 1 - axis), axis)
        return names_ND

    concrete, fused, types = _fused(function, tf.TensorSpec([8, 3], tf.string))
    names_ND = tf.strings.as_string(tf.reshape(tf.range(24), [8, 3]))
    np.testing.assert_array_equal(fused(names_ND), concrete(names_ND))
    assert types["Transpose"] == 3


@pytest.mark.parametrize("waits", ["join", "split"])
def test_what_waits_for_something_stays(waits: str) -> None:
    def function(rows_ND: tf.Tensor) -> tf.Tensor:
        check = tf.raw_ops.Assert(
            condition=tf.reduce_all(rows_ND > 0.0), data=["negative"]
        )
        with tf.control_dependencies([check] if waits == "split" else []):
            pieces = tf.split(rows_ND, 5)
        with tf.control_dependencies([check] if waits == "join" else []):
            return tf.concat(pieces, 1)

    concrete, fused, types = _fused(function, tf.TensorSpec([None, 3]))
    rows_ND = tf.reshape(tf.range(1.0, 31.0), [10, 3])
    np.testing.assert_array_equal(fused(rows_ND), concrete(rows_ND))
    assert "Transpose" not in types
    for one in (concrete, fused):
        with pytest.raises(tf.errors.InvalidArgumentError, match="negative"):
            one(-rows_ND)


def test_what_is_not_known_before_stays() -> None:
    def function(rows_ND: tf.Tensor, axis: tf.Tensor) -> Any:
        return (
            tf.concat(tf.split(rows_ND, 4), axis % 2),
            # Of rows without numbers, no number says how many there are.
            tf.concat(tf.split(rows_ND[:, :0], 4), 1),
        )

    concrete, fused, types = _fused(
        function, tf.TensorSpec([None, 3]), tf.TensorSpec([], tf.int32)
    )
    rows_ND = tf.reshape(tf.range(24.0), [8, 3])
    for axis in (0, 1):
        given = rows_ND, tf.constant(axis)
        for mine, theirs in zip(fused(*given), concrete(*given), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert "Transpose" not in types


def test_a_lock_is_still_taken_last() -> None:
    mutex = tf.raw_ops.MutexV2(container="", shared_name="transpositions_test")
    variable = tf.Variable(tf.zeros([12]))

    def function(rows_ND: tf.Tensor) -> None:
        added = tf.reduce_sum(tf.concat(tf.split(rows_ND, 4), 1) ** 2, 0)
        lock = tf.raw_ops.MutexLock(mutex=mutex)
        with tf.control_dependencies([lock]):
            done = variable.assign_add(added, read_value=False)
        with tf.control_dependencies([done]):
            tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    with tf.device(None):
        concrete = tf.function(function).get_concrete_function(
            tf.TensorSpec([8, 3])
        )
    flat = transpositions.transpose(
        common_subexpressions.merge(flatten(concrete.graph))
    )
    types = [one.operation.type for one in flat.operations]
    assert types.index("Sum") < types.index("MutexLock")
    assert "Transpose" in types


@pytest.mark.parametrize(
    "join",
    [
        lambda pieces: tf.concat(pieces[::-1], 1),
        lambda pieces: tf.concat(pieces[:-1], 1),
        lambda pieces: tf.concat([*pieces, pieces[0]], 1),
        lambda pieces: tf.concat(pieces, 0),
        lambda pieces: tf.concat([*pieces[:-1], pieces[-1] * 2.0], 1),
    ],
    ids=["reversed", "some", "more", "as it was", "changed"],
)
def test_what_is_joined_in_another_way_stays(join: _Join) -> None:
    def function(rows_ND: tf.Tensor) -> tf.Tensor:
        return join(tf.split(rows_ND, 5))

    concrete, fused, types = _fused(function, tf.TensorSpec([None, 3]))
    rows_ND = tf.reshape(tf.range(30.0), [10, 3])
    np.testing.assert_array_equal(fused(rows_ND), concrete(rows_ND))
    assert "Transpose" not in types


def test_pieces_that_are_needed_themselves_are_still_cut() -> None:
    def function(rows_ND: tf.Tensor) -> Any:
        pieces = tf.split(rows_ND, 5)
        return tf.concat(pieces, 1), pieces[2]

    concrete, fused, types = _fused(function, tf.TensorSpec([None, 3]))
    rows_ND = tf.reshape(tf.range(30.0), [10, 3])
    for mine, theirs in zip(fused(rows_ND), concrete(rows_ND), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert types["Transpose"] == types["Split"] == 1
    assert "ConcatV2" not in types
