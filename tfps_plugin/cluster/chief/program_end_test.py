"""Tests that an exit handler knows how its program ended."""

import subprocess
import sys

import pytest

_PROGRAM = """
import atexit
from tfps_plugin._compat import patch_table
from tfps_plugin._compat import patches
from tfps_plugin.cluster.chief import program_end
patches.apply(
    row for row in patch_table.CONNECTION if row.target == "sys:excepthook"
)
atexit.register(lambda: print(program_end.by_exception()))
{}
"""


@pytest.mark.parametrize(
    ("last_line", "expected", "exit_code"),
    [
        ("pass", "False", 0),
        ("raise SystemExit(3)", "False", 3),
        ("raise ValueError('of the user')", "True", 1),
        ("import sys; sys.ps1 = '> '; raise ValueError", "False", 1),
    ],
)
def test_knows_how_the_program_ended(
    last_line: str, expected: str, exit_code: int
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(last_line)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.stdout.strip() == expected
    assert result.returncode == exit_code
    assert ("Traceback" in result.stderr) == (exit_code == 1)


def test_ctrl_c_is_a_decision_to_end() -> None:
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format("raise KeyboardInterrupt")],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.stdout.strip() == "False"
