"""Tests of the terminal output of programs that fail in a step."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

_DEADLINE_SECONDS = 240
_REPOSITORY = pathlib.Path(__file__).parent.parent

_PROGRAM = """
import json
import sys

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

what = sys.argv[1]
if what == "numerics":
    tf.debugging.enable_check_numerics()


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        if what == "python":
            raise KeyError("words of the user")
        if what == "numerics":
            x = tf.math.log(x - 10.0)
        return self.dense(x)

    def train_step(self, data):
        if what == "assertion":
            tf.debugging.assert_equal(data[0][0, 0], 0.0, "words of the user")
        return super().train_step(data)


class Parse(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if what == "library":
            json.loads("{bad")


strategy = tfps.ParameterServerStrategy()
with strategy.scope():
    model = Model()
    model.compile("adam", "mse")
callbacks = [Parse()] if what == "library" else []
model.fit(
    np.ones((64, 3)), np.ones((64, 1)), verbose=0, callbacks=callbacks
)
"""


def _line_of(text: str) -> int:
    (number,) = (
        number
        for number, line in enumerate(_PROGRAM.splitlines(), start=1)
        if text in line
    )
    return number


def _failed(tmp_path: pathlib.Path, what: str) -> tuple[pathlib.Path, str, str]:
    """Returns the program, its output, and the traceback in it."""
    path = tmp_path / "train.py"
    path.write_text(_PROGRAM)
    ended = subprocess.run(
        [sys.executable, str(path), what],
        env={
            **os.environ,
            "PYTHONPATH": str(_REPOSITORY),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_DEADLINE_SECONDS,
    )
    said = ended.stdout
    assert ended.returncode == 1, said
    assert said.count("Traceback (most recent call last):") == 1, said
    _, traceback = said.split("Traceback (most recent call last):\n")
    return path, said, traceback


def _files(traceback: str) -> list[str]:
    return re.findall(r'^  File "(.+?)"', traceback, re.MULTILINE)


@pytest.mark.parametrize(
    ("what", "first", "made_by"),
    [
        (
            "assertion",
            # If it fails on several devices, TensorFlow lists all errors.
            r"InvalidArgumentError: (?s:.*)\[words of the user\]",
            '  File "{path}", line {assertion}, in train_step',
        ),
        (
            "numerics",
            r"InvalidArgumentError: !!! Detected Infinity or NaN .* \"Log\"",
            # TensorFlow cuts long paths there.
            "train.py (L{numerics}) call",
        ),
        (
            "python",
            r"KeyError: .*words of the user",
            '  File "{path}", line {python}, in call',
        ),
    ],
)
@pytest.mark.sample(cases=2)
def test_an_error_of_a_step_is_one_traceback_of_the_users_lines(
    tmp_path: pathlib.Path, what: str, first: str, made_by: str
) -> None:
    path, said, traceback = _failed(tmp_path, what)
    files = _files(traceback)
    # Only the user's own frames, the call of fit first.
    assert set(files) == {str(path)}, said
    assert f"line {_line_of('model.fit(')}, in <module>" in traceback
    assert re.search(first, traceback), said
    made = made_by.format(
        path=path,
        assertion=_line_of("assert_equal("),
        numerics=_line_of("tf.math.log("),
        python=_line_of("raise KeyError"),
    )
    assert f"{made}\n" in traceback, said
    assert not re.search(r"\((?:L\d+)\) (?!call|train_step)", traceback), said
    # Tasks do not repeat the error.
    assert not re.search(r"^(?:worker|ps) \d", said, re.MULTILINE), said
    assert len(traceback.splitlines()) < 40, said


def test_frames_of_what_a_callback_calls_stay(tmp_path: pathlib.Path) -> None:
    path, said, traceback = _failed(tmp_path, "library")
    files = _files(traceback)
    assert files[:2] == [str(path)] * 2, said
    assert f"line {_line_of('json.loads(')}, in on_train_batch_end" in traceback
    assert files[2] == json.__file__, said
    assert files[-1] == json.decoder.__file__, said
    assert not any("keras" in file for file in files), said
    assert "JSONDecodeError: Expecting property name" in traceback
