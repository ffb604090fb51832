"""Tests of functions and the tapes that record around them."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import patch_table
from tfps_plugin._compat import patches
from tfps_plugin._compat.graph import tensorflow_tapes

_X = tf.constant(3.0)


@pytest.fixture(autouse=True)
def patched() -> None:
    """Applies the patches; they stay, as other tests of this process need."""
    patches.apply(patch_table.VARIABLES)


def _note(found: list[bool], x: tf.Tensor) -> tf.Tensor:
    graph = tf.compat.v1.get_default_graph()
    found.append(tensorflow_tapes.are_its_own(graph))
    return x * 1.0


def _branch(note: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    return tf.cond(x > 0, lambda: note(x), lambda: x)


def _loop(note: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda x: x < 4, lambda x: note(x) + 1, [x])[0]


def _function(
    note: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor
) -> tf.Tensor:
    return tf.function(note)(x)


@pytest.mark.parametrize("inside", [_branch, _loop, _function])
@pytest.mark.parametrize("is_outside", [False, True])
def test_a_function_in_another_sees_tapes_of_its_own_only(
    inside: Callable[..., tf.Tensor], is_outside: bool
) -> None:
    found: list[bool] = []

    def under_its_own(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            return _note(found, x)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        if not is_outside:
            return inside(under_its_own, x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            return inside(lambda x: _note(found, x), x)

    step(_X)
    assert set(found) == {not is_outside}


def test_what_is_no_function_has_no_tapes_of_its_own() -> None:
    assert not tensorflow_tapes.are_its_own(tf.Graph())


def test_a_tape_around_a_value_for_others_is_refused() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tensorflow_tapes.only_for_its_own(x * x)
            tape.watch(y)
            z = y * 2.0
        return tape.gradient(z, y)

    @tf.function
    def value(x: tf.Tensor) -> tf.Tensor:
        return tensorflow_tapes.only_for_its_own(x * x)

    np.testing.assert_array_equal(step(_X), 2.0)
    np.testing.assert_array_equal(value(_X), 9.0)
    with tf.GradientTape() as tape:
        tape.watch(_X)
        with pytest.raises(errors.UnsupportedError, match="cache_rows"):
            value(_X)
