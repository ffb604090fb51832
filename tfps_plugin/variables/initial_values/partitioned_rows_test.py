"""Tests of initializers that are asked for a part of a variable."""

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.variables import testing
from tfps_plugin.variables.initial_values import initialization

_SHAPE = (7, 2)


def _numbers(shape: Any, offset: Any) -> tf.Tensor:
    first = offset[0] * shape[1]
    count = shape[0] * shape[1]
    return tf.reshape(tf.range(first, first + count), shape)


class _Aware:
    """Initializer that numbers the elements, and records its arguments."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __call__(
        self,
        shape: Any,
        dtype: Any = None,
        partition_shape: Any = None,
        partition_offset: Any = None,
    ) -> tf.Tensor:
        self.asked.append((partition_shape, partition_offset))
        made = _numbers(partition_shape or shape, partition_offset or (0, 0))
        return tf.cast(made, dtype)


def _fill(initial_value: Any, dtype: Any = tf.float32) -> np.ndarray:
    table = testing.sharded_variable(tf.zeros(_SHAPE, dtype), 3)
    described = initialization.describe(initial_value, dtype, _SHAPE)
    assert described.shape == _SHAPE
    initialization.fill_shards(table.shards, table.layout, described, "table")
    return table.numpy()


def _right() -> np.ndarray:
    return np.arange(14.0, dtype="float32").reshape(_SHAPE)


_PARTS = [((3, 2), (0, 0)), ((2, 2), (3, 0)), ((2, 2), (5, 0))]


def test_one_that_names_the_arguments_is_asked_for_each_shard() -> None:
    aware = _Aware()
    value = _fill(functools.partial(aware, _SHAPE, tf.float32))
    np.testing.assert_array_equal(value, _right())
    assert sorted(aware.asked, key=lambda part: part[1]) == _PARTS


def test_one_of_a_keras_variable_is_asked_likewise() -> None:
    aware = _Aware()
    created = []

    def create(next_creator: Any, **kwargs: Any) -> Any:
        created.append(kwargs)
        return next_creator(**kwargs)

    with tf.variable_creator_scope(create):
        keras.Variable(aware, shape=_SHAPE, dtype="float32")
    aware.asked.clear()
    value = _fill(created[0]["initial_value"])
    np.testing.assert_array_equal(value, _right())
    assert sorted(aware.asked, key=lambda part: part[1]) == _PARTS


def test_one_that_takes_any_keyword_may_use_them() -> None:
    def make(**part: Any) -> tf.Tensor:
        return tf.cast(
            _numbers(part["partition_shape"], part["partition_offset"]),
            tf.float32,
        )

    np.testing.assert_array_equal(_fill(make), _right())


@pytest.mark.parametrize("refusal", [None, TypeError, ValueError])
def test_one_that_takes_any_keyword_may_ignore_or_refuse_them(
    refusal: Any,
) -> None:
    asked = []

    def make(**part: Any) -> tf.Tensor:
        asked.append(part)
        if part and refusal is not None:
            raise refusal("no parts")
        return tf.cast(_numbers(_SHAPE, (0, 0)), tf.float32)

    np.testing.assert_array_equal(_fill(make), _right())
    assert len(asked) == (1 if refusal is None else 2)


def test_an_error_of_one_that_names_them_is_raised() -> None:
    def make(partition_shape: Any = None, partition_offset: Any = None) -> Any:
        raise ValueError("the file ends here")

    with pytest.raises(ValueError, match="the file ends here"):
        _fill(make)


def test_an_answer_of_another_shape_is_refused() -> None:
    def make(partition_shape: Any = None, partition_offset: Any = None) -> Any:
        return tf.zeros([1, 2])

    with pytest.raises(errors.VariableCreationError, match="partition_shape"):
        _fill(make)


def test_tensorflows_own_make_the_numbers_of_one_process() -> None:
    initial_value = functools.partial(
        tf.random_normal_initializer(seed=3), _SHAPE, tf.float32
    )
    np.testing.assert_array_equal(_fill(initial_value), initial_value())


def test_one_without_the_arguments_is_asked_for_all() -> None:
    value = _fill(lambda: tf.cast(_numbers(_SHAPE, (0, 0)), tf.float32))
    np.testing.assert_array_equal(value, _right())
