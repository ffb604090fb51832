"""Tests of `tfps manifest`: options in, text out."""

import pathlib
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner
from click.testing import Result

from tfps_plugin.deployment import formats
from tfps_plugin.launcher.cli import main
from tfps_plugin.launcher.commands import manifest as command


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["manifest", *arguments])


@pytest.mark.compat
def test_options_arrive() -> None:
    result = _run(
        *("--format", "plain", "--name", "ranking", "--namespace", "ml"),
        *("--image", "a/b:1", "--workers", "3", "--worker-cpu", "1.5"),
        *("--worker-memory", "3Gi", "--worker-gpu", "2", "--ps", "4"),
        *("--ps-memory", "64Gi", "--checkpoint-claim", "backups"),
        *("--checkpoint-path", "/backups", "--env", "A=b=c", "--evaluator"),
        *("--port", "4000", "--drain-seconds", "40", "--user-id", "77"),
        *("--max-restarts", "3", "--secret-env", "TOKEN=monitor/the.token"),
        *("train.py", "--workers", "7"),
    )
    assert result.exit_code == 0, result.output
    jobs = {
        each["metadata"]["name"]: each["spec"]
        for each in yaml.safe_load_all(result.stdout)
        if each["kind"] == "Job"
    }
    assert list(jobs) == [
        *("ranking-chief", "ranking-ps", "ranking-worker"),
        "ranking-evaluator",
    ]
    assert jobs["ranking-worker"]["completions"] == 3
    assert jobs["ranking-ps"]["parallelism"] == 4
    assert jobs["ranking-ps"]["backoffLimitPerIndex"] == 3
    pod = jobs["ranking-worker"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 45
    assert pod["securityContext"]["runAsUser"] == 77
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {
        "cpu": "1500m",
        "memory": "3Gi",
        "nvidia.com/gpu": "2",
    }
    assert container["ports"][0]["containerPort"] == 4000
    assert {"name": "A", "value": "b=c"} in container["env"]
    assert container["env"][-1] == {
        "name": "TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "monitor", "key": "the.token"}},
    }
    (container,) = jobs["ranking-chief"]["template"]["spec"]["containers"]
    # What follows the script is the script's.
    assert container["command"] == ["python", "train.py", "--workers", "7"]
    assert container["volumeMounts"][0]["mountPath"] == "/backups"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["train.py"], "--format"),
        (["--format", "helm", "train.py"], "helm"),
        (["--format", "jobset"], "SCRIPT"),
        (["--format", "jobset", "train.py"], "--image is missing"),
        (["--format", "jobset", "--workers", "0", "train.py"], "--workers"),
        (["--format", "slurm", "--image", "a", "train.py"], "--image a"),
        (["--format", "slurm", "--env", "A", "train.py"], "NAME=VALUE"),
        (["--format", "slurm", "--ps-memory", "8", "t.py"], "--ps-memory"),
        (["--format", "slurm", "--chief-cpu", "no", "t.py"], "--chief-cpu"),
        (["--format", "slurm", "--name", "A B", "t.py"], "--name 'A B'"),
        (["--format", "slurm", "--ps-gpu", "1", "t.py"], "--ps-gpu"),
        (
            ["--format", "compose", "--image", "a", "--sbatch=-x", "t.py"],
            "--sbatch",
        ),
        (
            ["--format", "slurm", "--user-id", "1000", "t.py"],
            "--user-id with --format slurm",
        ),
        (
            ["--format", "tfjob", "--max-restarts", "10", "t.py"],
            "--max-restarts with --format tfjob",
        ),
        (
            ["--format", "compose", "--secret-env", "A=b/c", "t.py"],
            "--secret-env with --format compose",
        ),
        (
            ["--format", "plain", "--secret-env", "A=b", "t.py"],
            "expected NAME=SECRET/KEY; received 'A=b'",
        ),
        (
            ["--format", "plain", "--evaluator-gpu", "1", "t.py"],
            "--evaluator-gpu without --evaluator",
        ),
        (
            ["--format", "plain", "--checkpoint-path", "/a", "t.py"],
            "--checkpoint-path without it",
        ),
    ],
)
def test_bad_input_is_refused(arguments: list[str], complaint: str) -> None:
    result = _run(*arguments)
    assert result.exit_code == 2
    assert complaint in result.output
    assert result.stdout == ""


def test_formats_are_those_that_there_are() -> None:
    assert formats.NAMES == command._FORMATS


def test_a_job_without_checkpoints_is_warned_about() -> None:
    options = ("--format", "jobset", "--image", "a")
    assert "--checkpoint-claim" in _run(*options, "train.py").stderr
    claim = ("--checkpoint-claim", "backups")
    assert not _run(*options, *claim, "train.py").stderr


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    result = _run("--format", "jobset", "--image", "a", "train.py")
    assert result.exit_code == 1
    assert "pip install 'tfps_plugin[deploy]'" in result.stderr


def test_tensorflow_is_not_needed(tmp_path: pathlib.Path) -> None:
    program = (
        "import sys\n"
        "from tfps_plugin.launcher.cli import main\n"
        "main(['manifest', '--format', 'jobset', '--image', 'a', 't.py'],"
        " standalone_mode=False)\n"
        "print('#', sorted({'tensorflow', 'keras', 'grpc'} & {*sys.modules}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.splitlines()[-1] == "# []"
