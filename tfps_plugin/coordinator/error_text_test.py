"""Tests of the text of a step error: its message and the user's lines."""

import os
import sysconfig
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.coordinator import error_text

_SITE = sysconfig.get_path("purelib")
_FRAMES = "\n\n".join(
    f'  File "{path}", line {line}, in {name}'
    for path, line, name in [
        ("/home/me/train.py", 90, "<module>"),
        (f"{_SITE}/keras/src/trainer.py", 7, "fit"),
        (error_text.__file__, 1, "shortened"),
        (os.__file__, 1, "walk"),
        ("/home/me/train.py", 12, "my_loss"),
        (f"{_SITE}/tensorflow/python/ops.py", 2, "op"),
    ]
)
_DETECTED = (
    "Detected at node loss/Assert defined at (most recent call last):\n"
    f"{_FRAMES}\n\n"
)
_MESSAGE = (
    "assertion failed: [labels] [1]\n"
    "\t [[{{node loss/Assert}}]]\n"
    "Additional GRPC error information from remote target /job:worker\n"
    ":UNKNOWN:Error received from peer [Op:__inference_step_1]"
)


@pytest.mark.parametrize("times", [1, 3])
def test_the_message_and_the_users_line_come_first(times: int) -> None:
    text = f"Graph execution error:\n\n{_DETECTED * times}{_MESSAGE}"
    short = error_text.shortened(text)
    # Without the lines that gRPC repeats.
    message = "\n".join(_MESSAGE.splitlines()[:2])
    assert short.startswith(message)
    rest = short.removeprefix(message).strip().splitlines()
    assert rest == [
        "In loss/Assert, made by:",
        '  File "/home/me/train.py", line 12, in my_loss',
        '  File "/home/me/train.py", line 90, in <module>',
        "",
        f"({4 * times} frames of libraries are left out.)",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "assertion failed: [labels] [1]",
        "",
        "Graph execution error:\n\nassertion failed",
        f"Graph execution error:\n\n{_DETECTED}",
    ],
)
def test_what_has_another_form_stays(text: str) -> None:
    assert error_text.shortened(text) == text


def test_where_a_number_went_wrong_is_said_without_libraries() -> None:
    creation = (
        "  Stack trace of op's creation:\n"
        "    + ... (Omitted 15 frames)\n"
        "    + /home/me/train.py (L12) my_loss\n"
        " -> |   return x / 0\n"
        "    + ...coordinator/tfps_plugin/coordinator/lanes/lane.py (L3) run\n"
        " -> |   \n"
        # Cut within the name of a folder.
        f"    + ...{error_text.__file__[-30:]} (L3) run\n"
        " -> |   \n"
        "    + ...tensorflow/python/framework/ops.py (L2726) create\n"
        "    |   \n"
        "\n : Tensor had NaN values"
    )
    text = f"Graph execution error:\n\n{_DETECTED}{creation}"
    # The node's name is missing if gRPC has cut the text.
    for whole in (text, f"Graph execution error:\n\n{creation}", creation):
        _assert_creation_is_short(error_text.shortened(whole))


def _assert_creation_is_short(short: str) -> None:
    assert "tfps_plugin/" not in short
    assert "tensorflow/" not in short
    assert "Omitted" not in short
    assert short.startswith(
        "Stack trace of op's creation:\n"
        "    + /home/me/train.py (L12) my_loss\n"
        " -> |   return x / 0\n"
        "\n : Tensor had NaN values\n"
    )


@pytest.mark.parametrize("second", ["words of the user", "another error"])
def test_an_error_of_several_devices_is_shown_once(second: str) -> None:
    listed = (
        "2 root error(s) found.\n"
        "  (0) INVALID_ARGUMENT:   words of the user\n"
        "\t [[{{node Assert}}]]\n"
        "\t [[while/body/_1/concat_4/_16]]\n"
        f"  (1) INVALID_ARGUMENT:  {second}\n"
        "\t [[{{node Assert}}]]\n"
        "0 successful operations.\n"
        "0 derived errors ignored."
    )
    text = f"Graph execution error:\n\n{_DETECTED}{listed}"
    short = error_text.shortened(text)
    if second == "words of the user":
        assert short.startswith("words of the user\n")
    else:
        assert short.startswith(listed)


@pytest.mark.parametrize("second", ["whole", "cut", "missing", "another"])
def test_a_long_error_of_several_devices_is_shown_once(second: str) -> None:
    checked = (
        "\n\n"
        '!!! Detected Infinity or NaN in output 0 of graph op "Log" !!!\n'
        "  shape: (32, 3)\n\n"
        "  Stack trace of op's creation:\n"
        "    + /home/me/train.py (L12) my_loss\n"
        " -> |   return x / 0\n"
        "    + ...tensorflow/python/framework/ops.py (L2726) create\n"
        "    |   \n"
        "\n : Tensor had NaN values\n"
        "\t [[{{node Log/CheckNumericsV2}}]]\n"
    )
    end = "0 successful operations.\n0 derived errors ignored."
    cut = checked[: checked.index("\n : Tensor")]
    cut += "    + ...tensorflow/pyth ... [truncated]"
    another = checked.replace("Log", "Sqrt")
    listed = "2 root error(s) found.\n  (0) INVALID_ARGUMENT:  "
    listed += {
        "whole": f"{checked}  (1) INVALID_ARGUMENT:  {checked}{end}",
        "cut": f"{checked}  (1) INVALID_ARGUMENT:  {cut}",
        "missing": cut,
        "another": f"{checked}  (1) INVALID_ARGUMENT:  {another}{end}",
    }[second]
    short = error_text.shortened(f"Graph execution error:\n\n{listed}")
    assert "my_loss" in short
    assert "tensorflow/" not in short
    if second == "another":
        assert "Log" in short
        assert "Sqrt" in short
    else:
        assert short.startswith("!!! Detected Infinity or NaN")
        assert short.count("my_loss") == 1
        assert ("Tensor had NaN values" in short) == (second != "missing")


def test_a_traceback_begins_where_the_users_code_does() -> None:
    users = compile(
        "def step(call):\n    call()\n", "/home/me/train.py", "exec"
    )
    names: dict[str, Any] = {}
    exec(users, names)

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        names["step"](fail)
    traceback = error_text.users_part(raised.value.__traceback__)
    assert traceback is not None
    assert traceback.tb_frame.f_code.co_filename == "/home/me/train.py"
    # The frames that it calls are kept.
    assert traceback.tb_next is not None
    with pytest.raises(ZeroDivisionError) as raised:
        fail()
    assert error_text.users_part(raised.value.__traceback__) is None


def test_tensorflow_still_writes_that_form() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.debugging.check_numerics(x / 0.0, "not a number")

    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        step(tf.constant(1.0))
    text = str(raised.value)
    assert text.startswith("Graph execution error:")
    assert "File" in text.split("not a number")[0]
    short = error_text.shortened(text)
    assert short.startswith("not a number")
    assert "frames of libraries are left out" in short
