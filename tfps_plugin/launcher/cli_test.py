import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner

import tfps_plugin
from tfps_plugin.cluster.serving import task_server
from tfps_plugin.launcher import control_socket
from tfps_plugin.launcher import job
from tfps_plugin.launcher.cli import main
from tfps_plugin.launcher.process_plan import ProcessPlan
from tfps_plugin.monitoring.serving.state_server import StateServer
from tfps_plugin.monitoring.state import json_form
from tfps_plugin.monitoring.state.testing import example_state

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
        (["run", "--ps", "4:1", __file__], "Received: --ps '4:1'"),
        (["scale"], "or both. Received: neither. Add one"),
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


def test_serve_says_it_as_json() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tfps_plugin", "serve", "--log-format=json"],
        env={**os.environ, "TF_CONFIG": ""},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert result.returncode == 1
    (line,) = map(json.loads, result.stderr.splitlines())
    assert line["level"] == "ERROR"
    assert line["logger"] == "tfps_plugin.cluster"
    assert "TF_CONFIG is not set" in line["message"]


def test_serve_hands_its_options_on(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[list[str]] = []
    # It sets them for the task, which this process is to be.
    monkeypatch.setenv("TFPS_LOG_FORMAT", "text")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
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


@pytest.fixture
def served_state(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> Iterator[int]:
    """Yields the port at which a chief tells an example of a state."""
    # Other jobs of this machine are not seen.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server = StateServer(
        example_state, address=("127.0.0.1", 0), token="secret"
    )
    server.start()
    assert server.port is not None
    yield server.port
    server.stop()


def test_status_shows_the_job_of_this_machine(
    runner: CliRunner, served_state: int
) -> None:
    result = runner.invoke(main, ["status"])
    assert result.exit_code == 0, result.output
    assert "fit of ranking" in result.output


def test_status_prints_json(runner: CliRunner, served_state: int) -> None:
    result = runner.invoke(
        main,
        ["status", "--json", "--connect", f"127.0.0.1:{served_state}"],
        env={"TFPS_MONITOR_TOKEN": "secret"},
    )
    assert result.exit_code == 0, result.output
    assert json_form.decode(result.output) == example_state()


def test_a_wrong_token_is_an_error(
    runner: CliRunner, served_state: int
) -> None:
    address = f"127.0.0.1:{served_state}"
    for command in ("status", "top", "dashboard", "profile"):
        result = runner.invoke(
            main, [command, "--connect", address, "--token", "wrong"]
        )
        assert result.exit_code == 1, command
        assert "wants a token" in result.output


@pytest.mark.parametrize("address", ["8470", "host", "host:http", ":8470"])
def test_a_malformed_address_is_an_error(
    runner: CliRunner, address: str
) -> None:
    result = runner.invoke(main, ["status", "--connect", address])
    assert result.exit_code == 2
    assert "expected host:port" in result.output


def test_a_job_that_does_not_answer_is_told_of(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    jobs = {7: tmp_path / "no_socket"}
    monkeypatch.setattr(control_socket, "running_jobs", lambda: jobs)
    result = runner.invoke(main, ["scale", "--workers=3"])
    assert result.exit_code == 1
    text = " ".join(result.output.split())
    assert "Expected an answer of tfps run, process 7. Received: " in text
    assert "See whether that process still runs" in text


def test_without_a_job_the_commands_say_so(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for command in ("status", "top", "dashboard", "profile"):
        result = runner.invoke(main, [command])
        assert result.exit_code == 1, command
        assert "programs that run: none" in result.output


def test_a_task_that_is_not_there_is_not_traced(
    runner: CliRunner, served_state: int
) -> None:
    result = runner.invoke(main, ["profile", "--task", "worker:9"])
    assert result.exit_code == 2
    assert "worker:0, worker:1, ps:0" in result.output
