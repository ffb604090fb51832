"""Tests of fewer bits for what travels."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.variables import testing
from tfps_plugin.variables import wire
from tfps_plugin.variables.update_lock import UpdateLock

# Far more digits than bfloat16 has.
_VALUE = np.linspace(0.1, 0.9, 12, dtype=np.float32).reshape([3, 4])
_ROUNDED = tf.cast(tf.cast(_VALUE, tf.bfloat16), tf.float32).numpy()


@pytest.mark.parametrize(
    "given", ["bfloat16", tf.bfloat16, lambda path: "bfloat16"]
)
def test_what_can_be_said(given: Any) -> None:
    assert wire.chooser(given)("some/path") == tf.bfloat16


def test_some_variables_may_be_left_out() -> None:
    choose = wire.chooser(lambda p: None if p == "kernel" else "float16")
    assert choose("kernel") is None
    assert choose("table") == tf.float16
    assert wire.chooser(None)("table") is None


@pytest.mark.parametrize("wrong", ["int8", "bf16", 16, np.float32, [tf.half]])
def test_what_cannot_be_said(wrong: Any) -> None:
    with pytest.raises(ValueError, match="Received: wire_dtype="):
        wire.chooser(wrong)
    with pytest.raises(ValueError, match="for the variable 'a/b'"):
        wire.chooser(lambda path: wrong)("a/b")


def test_a_step_reads_what_has_travelled_and_others_do_not() -> None:
    variable = testing.remote_variable(_VALUE)
    variable.wire_dtype = tf.bfloat16

    @tf.function
    def read() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            value = variable.read_value()
            rows = tf.gather(variable, [2, 0])
            loss = tf.reduce_sum(value * 1.5)
        return value, rows, tape.gradient(loss, variable)

    @tf.function
    def look() -> tuple[tf.Tensor, tf.Tensor]:
        # Nobody learns from it.
        return variable.read_value(), tf.gather(variable, [2, 0])

    exact, exact_rows = look()
    np.testing.assert_array_equal(exact, _VALUE)
    np.testing.assert_array_equal(exact_rows, _VALUE[[2, 0]])
    value, rows, gradient = read()
    np.testing.assert_array_equal(value, _ROUNDED)
    np.testing.assert_array_equal(rows, _ROUNDED[[2, 0]])
    np.testing.assert_array_equal(gradient, np.full([3, 4], 1.5))
    np.testing.assert_array_equal(variable.numpy(), _VALUE)
    np.testing.assert_array_equal(tf.gather(variable, [1]), _VALUE[[1]])


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_self_assignment_does_not_round_the_variable(factor: float) -> None:
    variable = testing.remote_variable(_VALUE)
    variable.update_lock = UpdateLock(testing.LOCAL_DEVICE, "wire_test")
    variable.wire_dtype = tf.bfloat16

    @tf.function
    def assign() -> None:
        with tf.GradientTape():
            variable.assign(factor * variable + 0.25)

    assign()
    np.testing.assert_array_equal(
        variable.numpy(), np.float32(factor) * _VALUE + np.float32(0.25)
    )


def test_narrow_variables_travel_as_they_are() -> None:
    for dtype in (tf.bfloat16, tf.float16, tf.int32):
        variable = testing.remote_variable(np.ones(3, dtype.as_numpy_dtype))
        variable.wire_dtype = tf.bfloat16

        @tf.function
        def seen(variable: Any = variable) -> None:
            assert wire.dtype_for(variable) is None

        seen()
