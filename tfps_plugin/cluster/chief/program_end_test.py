"""Tests that an exit handler knows how its program ended."""

import os
import pathlib
import subprocess
import sys

import pytest

import tfps_plugin

_PROGRAM = """
import atexit
from tfps_plugin.cluster.chief import program_end
atexit.register(lambda: print(program_end.by_exception()))
{}
"""


# As a runner of tests does with an error of a test.
_KEPT_AFTER_IT_WAS_CAUGHT = """
import json, sys
try:
    json.loads("{")
except ValueError as error:
    sys.last_value, sys.last_traceback = error, error.__traceback__.tb_next
"""


@pytest.mark.parametrize("as_module", [False, True])
@pytest.mark.parametrize(
    ("last_line", "expected", "exit_code"),
    [
        ("pass", "False", 0),
        ("raise SystemExit(3)", "False", 3),
        ("raise ValueError('of the user')", "True", 1),
        ("import sys; sys.ps1 = '> '; raise ValueError", "False", 1),
        (_KEPT_AFTER_IT_WAS_CAUGHT, "False", 0),
    ],
)
def test_knows_how_the_program_ended(
    tmp_path: pathlib.Path,
    last_line: str,
    expected: str,
    exit_code: int,
    as_module: bool,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM.format(last_line))
    result = _run(
        *(["-m", "program"] if as_module else [str(program)]), cwd=tmp_path
    )
    assert result.stdout.strip() == expected
    assert result.returncode == exit_code
    assert ("Traceback" in result.stderr) == (exit_code == 1)


def test_ctrl_c_is_a_decision_to_end() -> None:
    result = _run("-c", _PROGRAM.format("raise KeyboardInterrupt"))
    assert result.stdout.strip() == "False"


def test_a_program_may_show_its_errors_itself() -> None:
    line = "import sys; sys.excepthook = lambda *_: None; raise ValueError"
    result = _run("-c", _PROGRAM.format(line))
    assert result.stdout.strip() == "True"


def _run(
    *arguments: str, cwd: pathlib.Path | None = None
) -> subprocess.CompletedProcess[str]:
    package = pathlib.Path(tfps_plugin.__file__).parent.parent
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(package)},
    )
