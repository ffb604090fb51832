import io
import json
import types
from typing import Any

import click
import pytest

from tfps_plugin.cluster.output.console import STDERR
from tfps_plugin.cluster.output.console import STDOUT
from tfps_plugin.cluster.output.console import Console
from tfps_plugin.cluster.output.console import make_labels
from tfps_plugin.cluster.output.console import wants_colour

_NAMES = ("ps 0", "worker 0", "chief")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Narrow(io.StringIO):
    encoding = "ascii"


def test_streams_stay_apart() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(["ps 0"], {}, out, err)
    console.show("ps 0", STDOUT, ["a", "b"])
    console.show("ps 0", STDERR, ["c"])
    console.say("d", alarming=True)
    assert out.getvalue() == "ps 0 | a\nps 0 | b\n"
    assert err.getvalue() == "ps 0 | c\ntfps | d\n"


def test_what_can_only_be_written_to_is_enough() -> None:
    written: list[str] = []
    only: Any = types.SimpleNamespace(write=written.append, flush=int)
    Console(["ps 0"], {}, only, only).show("ps 0", STDERR, ["\u00f6"])
    assert written == ["ps 0 | \u00f6\n"]


def test_a_terminal_is_cleared_and_coloured() -> None:
    out = _Terminal()
    console = Console(["ps 0"], {"TERM": "xterm"}, out, io.StringIO())
    console.show("ps 0", STDOUT, ["a"])
    assert out.getvalue() == "\r\x1b[K\x1b[32mps 0 | \x1b[0ma\n"
    assert console.is_terminal(STDOUT)
    assert console.is_coloured(STDOUT)
    assert not console.is_coloured(STDERR)


def test_bytes_are_forwarded_behind_the_lines() -> None:
    err = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(["ps 0"], {}, io.StringIO(), err)
    console.show("ps 0", STDERR, ["a"])
    console.forward(STDERR, b"\r\xff")
    console.show("ps 0", STDERR, ["b"])
    assert err.buffer.getvalue() == b"ps 0 | a\n\r\xffps 0 | b\n"


def test_no_color_is_respected() -> None:
    err = _Terminal()
    console = Console(["ps 0"], {"NO_COLOR": "1"}, io.StringIO(), err)
    console.say("oh", alarming=True)
    assert err.getvalue() == "\r\x1b[Ktfps | oh\n"


def test_characters_that_the_output_lacks_are_replaced() -> None:
    out = _Narrow()
    Console(["ps 0"], {}, out, io.StringIO()).show("ps 0", STDOUT, ["━ x"])
    assert out.getvalue() == "ps 0 | ? x\n"


def test_json_has_neither_labels_nor_colours() -> None:
    out, err = _Terminal(), _Terminal()
    console = Console(["ps 0"], {"TERM": "xterm"}, out, err, as_json=True)
    console.show("ps 0", STDOUT, ["━ x", '{"loss": 1}'])
    console.say("oh", "no", alarming=True)
    first, second = out.getvalue().splitlines()
    assert json.loads(first)["message"] == "━ x"
    assert json.loads(first)["task"] == "ps 0"
    assert second == '{"loss": 1}'
    (said,) = map(json.loads, err.getvalue().splitlines())
    assert (said["message"], said["level"]) == ("oh\nno", "ERROR")
    assert not console.is_terminal(STDOUT)
    assert not console.is_coloured(STDERR)


def test_labels_have_one_width() -> None:
    assert make_labels(_NAMES, coloured=False) == {
        "ps 0": "ps 0     | ",
        "worker 0": "worker 0 | ",
        "chief": "chief    | ",
    }


def test_each_task_has_a_colour_of_its_own() -> None:
    plain = make_labels(_NAMES, coloured=False)
    coloured = make_labels(_NAMES, coloured=True)
    starts = set()
    for name in _NAMES:
        assert click.unstyle(coloured[name]) == plain[name]
        starts.add(coloured[name].split("m")[0])
    assert len(starts) == len(_NAMES)


def test_there_are_labels_for_more_tasks_than_colours() -> None:
    names = [f"worker {index}" for index in range(50)]
    assert list(make_labels(names, coloured=True)) == names


@pytest.mark.parametrize(
    ("environ", "is_terminal", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_colour_is_a_matter_of_terminal_and_wish(
    environ: dict[str, str], is_terminal: bool, expected: bool
) -> None:
    assert wants_colour(environ, is_terminal=is_terminal) is expected
