import os
import pathlib
import subprocess
import sys

import pytest
from click.testing import CliRunner

import tfps_plugin
from tfps_plugin.cluster.machine import large_pages
from tfps_plugin.cluster.serving import task_server
from tfps_plugin.launcher.cli import main

# Option handling is what differs between releases of click.
pytestmark = pytest.mark.compat


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


def test_help_names_the_commands(runner: CliRunner) -> None:
    output = runner.invoke(main, ["--help"]).output
    assert "run " in output
    assert "serve " in output


def test_version(runner: CliRunner) -> None:
    output = runner.invoke(main, ["--version"]).output
    assert output == f"tfps, version {tfps_plugin.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run"], "Missing argument 'SCRIPT'"),
        (["run", "/no/such/script.py"], "does not exist"),
        (["run", "--workers", "0", __file__], "--workers"),
        (["run", "--ps", "0", __file__], "--ps"),
        (["run", "--evaluater", __file__], "--evaluater"),
    ],
)
def test_wrong_use_is_told_before_anything_starts(
    runner: CliRunner, arguments: list[str], complaint: str
) -> None:
    result = runner.invoke(main, arguments)
    assert result.exit_code == 2
    assert complaint in result.output


def test_a_folder_is_no_script(
    runner: CliRunner, tmp_path: pathlib.Path
) -> None:
    result = runner.invoke(main, ["run", str(tmp_path)])
    assert result.exit_code == 2
    assert "is a directory" in result.output


@pytest.mark.parametrize(
    ("tf_config", "complaint"),
    [("", "TF_CONFIG is not set"), ("no JSON", "TF_CONFIG is not valid JSON")],
)
def test_serve_says_what_is_wrong_with_tf_config(
    tf_config: str, complaint: str
) -> None:
    # In a process of its own: to serve ends the process.
    result = subprocess.run(
        [sys.executable, "-m", "tfps_plugin", "serve"],
        env={**os.environ, "TF_CONFIG": tf_config},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert result.returncode == 1
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


def test_serve_hands_its_options_on(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[list[str]] = []
    begun_again: list[None] = []
    monkeypatch.setattr(task_server, "main", received.append)
    monkeypatch.setattr(
        large_pages, "begin_again", lambda: begun_again.append(None)
    )
    runner.invoke(main, ["serve"], catch_exceptions=False)
    runner.invoke(
        main, ["serve", "--chief-grace-seconds", "5"], catch_exceptions=False
    )
    assert received == [[], ["--chief-grace-seconds=5.0"]]
    assert len(begun_again) == 2
