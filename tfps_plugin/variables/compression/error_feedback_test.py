"""Tests of the rounding errors of gradients."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.variables import testing
from tfps_plugin.variables.compression import error_feedback
from tfps_plugin.variables.compression import wire
from tfps_plugin.variables.saving import shard_reader

# Next to 127, the step is one: numbers below one half are rounded to zero.
_GRADIENT = np.array(
    [[127.0, 0.3, -0.2, 0.0, 0.4, 0.1, -0.45, 1.25]], "float32"
)


def _sender(wire_dtype: tf.DType) -> Any:
    variable = testing.remote_variable(np.zeros_like(_GRADIENT))
    variable.wire_dtype = wire_dtype

    @tf.function
    def send(gradient: tf.Tensor) -> tf.Tensor:
        wanted = error_feedback.corrected(variable, gradient)
        sent = wire.narrowed(wanted, wire_dtype)
        return wire.widened(sent, gradient.dtype, gradient.shape[-1])

    return send


def test_what_is_left_off_comes_later() -> None:
    send = _sender(tf.int8)
    total = np.zeros_like(_GRADIENT)
    with testing.lane(0):
        for number in range(1, 41):
            total += send(tf.constant(_GRADIENT)).numpy()
            error = np.abs(total - number * _GRADIENT)
            # One step of the scale of the gradient plus its residual.
            assert error.max() <= 0.51 * 128 / 127


def test_each_lane_keeps_its_own() -> None:
    send = _sender(tf.int8)
    alone = _sender(tf.int8)
    zero = tf.zeros_like(_GRADIENT)
    with testing.lane(0):
        send(tf.constant(_GRADIENT))
    with testing.lane(1):
        np.testing.assert_array_equal(send(zero), zero)
        alone(tf.constant(_GRADIENT))
    with testing.lane(0):
        kept = send(zero)
    assert np.abs(kept).max() > 0.3
    with testing.lane(1):
        np.testing.assert_array_equal(alone(zero), kept)


def test_what_is_not_finite_is_not_kept() -> None:
    send = _sender(tf.int8)
    wrong = _GRADIENT.copy()
    wrong[0, 3] = np.inf
    with testing.lane(0):
        assert not np.isfinite(send(tf.constant(wrong))).all()
        assert np.isfinite(send(tf.constant(_GRADIENT))).all()


def test_large_tables_are_rounded_by_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shard_reader, "BLOCK_BYTES", 8)
    send = _sender(tf.int8)
    with testing.lane(0):
        seen = {float(send(tf.constant(_GRADIENT))[0, 1]) for _ in range(60)}
    assert seen == {0.0, 1.0}


def test_other_dtypes_keep_nothing() -> None:
    for wire_dtype in (None, tf.bfloat16):
        send = _sender(wire_dtype)
        with testing.lane(0):
            first = send(tf.constant(_GRADIENT))
            np.testing.assert_array_equal(first, send(tf.constant(_GRADIENT)))
