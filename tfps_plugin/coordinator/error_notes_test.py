"""What is said of exceptions beside their message."""

import logging

import pytest
import tensorflow as tf

from tfps_plugin.coordinator.error_notes import ErrorNotes

_TEXT = (
    "OOM when allocating tensor with shape[1000000,64] and type float on "
    "/job:ps/replica:0/task:1/device:CPU:0 by allocator cpu"
)


def _notes(error: Exception, times: int = 1) -> list[str]:
    notes = ErrorNotes(lambda index: f"what ps {index} has")
    for _ in range(times):
        notes.add(error, 3)
    return list(error.__notes__)


def test_the_worker_is_named_once() -> None:
    assert _notes(ValueError("bad"), times=2) == [
        "Raised by a function that ran on worker 3."
    ]


def test_a_ps_without_memory_is_named_with_what_it_holds() -> None:
    error = tf.errors.ResourceExhaustedError(None, None, _TEXT)
    (_, about_ps) = _notes(error, times=2)
    assert "Parameter server 1 holds what ps 1 has" in about_ps


def test_a_worker_without_memory_is_no_matter_of_a_ps() -> None:
    text = _TEXT.replace("ps", "worker")
    error = tf.errors.ResourceExhaustedError(None, None, text)
    assert len(_notes(error)) == 1


def test_the_message_of_tensorflow_comes_first_and_in_full_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "tfps_plugin.coordinator")

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.debugging.check_numerics(x / 0.0, "not a number")

    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        step(tf.constant(1.0))
    error = raised.value
    text = str(error)
    assert _notes(error) == ["Raised by a function that ran on worker 3."]
    assert str(error).startswith("not a number")
    assert error.message == str(error)
    assert error.__traceback__ is None
    assert text in caplog.text
