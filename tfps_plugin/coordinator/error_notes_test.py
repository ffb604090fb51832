"""Tests of notes that are added to exceptions."""

import contextlib
import functools
import json
import logging
import os
import sysconfig
import traceback
from typing import Any

import keras
import pytest
import tensorflow as tf

from tfps_plugin.coordinator import error_notes
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


def _raised(error: Exception, *paths: str) -> Exception:
    """Makes an exception that passed frames of files with these names."""

    def call() -> None:
        raise error

    for path in reversed(paths):
        names: dict[str, Any] = {"call": call}
        exec(compile("def run():\n    call()\n", path, "exec"), names)
        call = names["run"]
    with pytest.raises(type(error)) as raised:
        call()
    return raised.value


def _site(path: str) -> str:
    """Returns the path of a file of an installed package."""
    return os.path.join(sysconfig.get_path("purelib"), path)


def _files(error: BaseException) -> list[str]:
    return [
        frame.f_code.co_filename
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]


def test_only_the_users_frames_stay() -> None:
    # This file is one of the package's own.
    error = _raised(ZeroDivisionError(), "/home/me/train.py")
    assert error_notes.fold(error) is error
    assert _files(error) == ["/home/me/train.py"]


def test_what_is_not_the_users_keeps_its_frames() -> None:
    error = _raised(ZeroDivisionError(), error_notes.__file__)
    before = _files(error)
    assert len(before) == 3
    error_notes.fold(error)
    assert _files(error) == before
    error.add_note("Raised by a function that ran on worker 3.")
    error_notes.fold(error)
    assert _files(error) == []


@pytest.mark.parametrize("is_of_a_worker", [False, True])
def test_what_the_users_code_has_called_stays(is_of_a_worker: bool) -> None:
    error = _raised(
        json.JSONDecodeError("bad", "{bad", 1),
        "/home/me/train.py",
        keras.__file__,
        # Keras calls it on the way to the user's code.
        contextlib.__file__,
        "/home/me/callback.py",
        # A library that the user's code calls, and that calls it.
        _site("sklearn/pipeline.py"),
        functools.__file__,
        "/home/me/parsing.py",
        _site("pandas/io/json.py"),
        _site("tensorflow/python/ops.py"),
        json.__file__,
    )
    if is_of_a_worker:
        error.add_note("Raised by a function that ran on worker 3.")
    assert error_notes.fold(error) is error
    assert _files(error) == [
        "/home/me/train.py",
        "/home/me/callback.py",
        _site("sklearn/pipeline.py"),
        functools.__file__,
        "/home/me/parsing.py",
        _site("pandas/io/json.py"),
        json.__file__,
    ]
