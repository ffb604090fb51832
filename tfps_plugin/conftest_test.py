"""Tests of the check for leftovers, and of the order of tests."""

import pathlib
import subprocess
import sys

import pytest

_PROLOGUE = """
import subprocess, sys, tempfile, threading
import tfps_plugin.conftest
tfps_plugin.conftest._PATIENCE_SECONDS = 0.2
end = threading.Event()
children = []
to_come = threading.Thread(target=end.wait, name="to come")

def teardown_module():
    end.set()
    for child in children:
        child.communicate()
"""


@pytest.mark.parametrize(
    ("leak", "found"),
    [
        ("threading.Thread(target=end.wait, name='astray').start()", "astray"),
        (
            "children.append(subprocess.Popen("
            "[sys.executable, '-c', 'input()'], stdin=subprocess.PIPE))",
            "input()",
        ),
        ("tempfile.mkstemp(suffix='.lost')", ".lost"),
        ("to_come.start()", None),
        ("pass", None),
    ],
)
def test_leaks_are_found(
    leak: str, found: str | None, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "leaking_test.py"
    path.write_text(f"{_PROLOGUE}\ndef test_leaks():\n    {leak}\n")
    result = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "tfps_plugin.conftest"),
            *("-p", "no:cacheprovider", "-c", "/dev/null"),
            *(f"--basetemp={tmp_path / 'base'}", str(path)),
        ],
        cwd=pathlib.Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert "1 passed" in result.stdout
    if found is None:
        assert result.returncode == 0
    else:
        assert result.returncode == 1
        assert "The test left behind" in result.stdout
        assert found in result.stdout


def test_integration_tests_come_last_however_they_are_named() -> None:
    root = pathlib.Path(__file__).parents[1]
    result = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--collect-only", "-q"),
            *("-p", "no:cacheprovider"),
            *("integration_tests/rounds_test.py", "tfps_plugin/docs_test.py"),
        ],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert result.returncode == 0, result.stdout
    files = [
        line.split("::")[0]
        for line in result.stdout.splitlines()
        if "::" in line
    ]
    assert list(dict.fromkeys(files)) == [
        "tfps_plugin/docs_test.py",
        "integration_tests/rounds_test.py",
    ]
