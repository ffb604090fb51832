"""Tests of values that travel in fewer bits."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.variables import testing
from tfps_plugin.variables.compression import wire
from tfps_plugin.variables.updates.update_lock import UpdateLock

# Far more digits than bfloat16 has.
_VALUE = np.linspace(0.1, 0.9, 12, dtype=np.float32).reshape([3, 4])
_ROUNDED = tf.cast(tf.cast(_VALUE, tf.bfloat16), tf.float32).numpy()
_ROWS = np.linspace(-0.1, 0.9, 80, dtype=np.float32).reshape([8, 10])
_SCALES = np.abs(_ROWS).max(1, keepdims=True) / np.float32(127)
_ROWS_OF_BYTES = np.round(_ROWS / _SCALES) * _SCALES


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


@pytest.mark.parametrize("wrong", ["int7", "bf16", 16, np.float32, [tf.half]])
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
        # Nothing is trained with these values.
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


def _whole() -> Any:
    return testing.remote_variable(_ROWS)


def _cut() -> Any:
    return testing.sharded_variable(_ROWS, 3)


def _read_whole(variable: Any) -> tuple[tf.Tensor, np.ndarray]:
    return tf.convert_to_tensor(variable), _ROWS_OF_BYTES


def _read_rows(variable: Any) -> tuple[tf.Tensor, np.ndarray]:
    ids = [5, 0, 5, 7]
    return tf.gather(variable, ids), _ROWS_OF_BYTES[ids]


def _read_slice(variable: Any) -> tuple[tf.Tensor, np.ndarray]:
    return variable[2:7], _ROWS_OF_BYTES[2:7]


@pytest.mark.parametrize("make", [_whole, _cut])
@pytest.mark.parametrize("read", [_read_whole, _read_rows, _read_slice])
def test_rows_travel_as_bytes_and_a_scale(make: Any, read: Any) -> None:
    variable = make()
    for part in (variable, *getattr(variable, "variables", ())):
        part.wire_dtype = tf.int8
    expected = []

    @tf.function
    def step() -> tuple[tf.Tensor, Any]:
        with tf.GradientTape() as tape:
            value, reference = read(variable)
            loss = tf.reduce_sum(value * 1.5)
        expected.append(reference)
        return value, tf.convert_to_tensor(tape.gradient(loss, variable))

    value, gradient = step()
    np.testing.assert_allclose(value, expected[0], rtol=1e-6)
    assert np.abs(value - _ROWS.mean()).max() > 0.1
    times = np.round(gradient.numpy() / 1.5)
    np.testing.assert_array_equal(gradient, 1.5 * times)


def test_few_numbers_travel_as_they_are() -> None:
    for shape in ([16], [16, 7], [2, 3, 16], []):
        variable = testing.remote_variable(np.ones(shape, np.float32))
        variable.wire_dtype = tf.int8

        @tf.function
        def seen(variable: Any = variable) -> None:
            assert wire.dtype_for(variable) is None

        seen()


@pytest.mark.parametrize("wire_dtype", [tf.bfloat16, tf.int8])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_self_assignment_does_not_round_the_variable(
    factor: float, wire_dtype: tf.DType
) -> None:
    variable = testing.remote_variable(_ROWS)
    variable.update_lock = UpdateLock(testing.LOCAL_DEVICE, "wire_test")
    variable.wire_dtype = wire_dtype

    @tf.function
    def assign() -> None:
        with tf.GradientTape():
            variable.assign(factor * variable + 0.25)

    assign()
    np.testing.assert_array_equal(
        variable.numpy(), np.float32(factor) * _ROWS + np.float32(0.25)
    )


def test_narrow_variables_travel_as_they_are() -> None:
    for dtype in (tf.bfloat16, tf.float16, tf.int32):
        variable = testing.remote_variable(np.ones(3, dtype.as_numpy_dtype))
        variable.wire_dtype = tf.bfloat16

        @tf.function
        def seen(variable: Any = variable) -> None:
            assert wire.dtype_for(variable) is None

        seen()
