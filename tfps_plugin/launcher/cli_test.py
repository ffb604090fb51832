import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner

import tfps_plugin
from tfps_plugin.cluster.serving import task_server
from tfps_plugin.launcher import job
from tfps_plugin.launcher.cli import main
from tfps_plugin.launcher.plan import ProcessPlan

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
        (["run", "--ps", "4:1", __file__], "received '4:1'"),
        (["scale"], "Expected --workers, --ps, or both"),
        (["scale", "--ps", "0"], "--ps"),
        (["run", "--evaluater", __file__], "--evaluater"),
    ],
)
def test_wrong_use_is_told_before_anything_starts(
    runner: CliRunner, arguments: list[str], complaint: str
) -> None:
    result = runner.invoke(main, arguments)
    assert result.exit_code == 2
    assert complaint in result.output


def test_a_plan_tells_of_a_wrong_network_before_anything_starts(
    runner: CliRunner,
) -> None:
    result = runner.invoke(main, ["plan", "--network", "25GB", __file__])
    assert result.exit_code == 1
    assert "Received: '25GB'" in result.output


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
    monkeypatch.setattr(task_server, "main", received.append)
    for arguments in ([], ["--chief-grace-seconds", "5", "--tune"]):
        runner.invoke(main, ["serve", *arguments], catch_exceptions=False)
    assert received == [[], ["--chief-grace-seconds=5.0", "--tune"]]


@pytest.mark.parametrize(
    ("arguments", "variable", "expected"),
    [([], None, "0"), (["--tune"], None, "1"), ([], "1", "1"), ([], "0", "0")],
)
def test_only_asked_for_the_machine_is_tuned(
    arguments: list[str],
    variable: str | None,
    expected: str,
    runner: CliRunner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[ProcessPlan] = []

    class NoJob:
        def __init__(
            self, given: Sequence[ProcessPlan], *_: Any, **__: Any
        ) -> None:
            plans.extend(given)

        def run(self) -> int:
            return 0

    monkeypatch.setattr(job, "Job", NoJob)
    result = runner.invoke(
        main, ["run", *arguments, __file__], env={"TFPS_TUNE": variable}
    )
    assert result.exit_code == 0
    tuned = {plan.name: plan.environ.get("TFPS_TUNE") for plan in plans}
    assert tuned == {
        **dict.fromkeys(["ps 0", "worker 0", "worker 1"], expected),
        "chief": None,
    }
