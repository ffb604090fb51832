"""Tests of generated batch scripts, on a Slurm of their own.

That needs root and the programs of Slurm; where they are missing, the tests are
skipped.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
from collections.abc import Iterator

import numpy as np
import pytest
import shared_pods
import shared_slurm
import train_when_deployed
from click.testing import CliRunner
from shared_slurm import Slurm

from tfps_plugin.launcher.cli import main

_SECONDS = 200.0
_NAME = "ranking"
_TEXT = "$(HOME) $HOME $$ 'a' \"b\""


@pytest.fixture
def slurm(tmp_path: pathlib.Path) -> Iterator[Slurm]:
    if reason := shared_slurm.why_not():
        pytest.skip(reason)
    environ = shared_pods.environ_with_commands(tmp_path)
    with contextlib.ExitStack() as stack:
        yield Slurm(stack, tmp_path, environ)


def _submit(slurm: Slurm, folder: pathlib.Path) -> str:
    """Submits a job; returns its number."""
    shutil.copy(train_when_deployed.__file__, folder / "train.py")
    small = [f"--{kind}-cpu=1" for kind in ("chief", "ps", "worker")]
    result = CliRunner().invoke(
        main,
        [
            *("manifest", "--format", "slurm", "--name", _NAME, *small),
            *("--env", f"TEXT={_TEXT}", "train.py"),
            *("--backup-dir", str(folder), "--text", _TEXT),
        ],
    )
    assert result.exit_code == 0, result.output
    script = folder / "job.sh"
    script.write_text(result.stdout)
    return slurm.call("sbatch", "--parsable", str(script)).strip()


def _process_of(kind: str, index: int) -> int:
    """Returns the process of a task of the job on this machine."""
    wanted = {"type": kind, "index": index}
    (found,) = (
        int(folder.name)
        for folder in pathlib.Path("/proc").glob("[0-9]*")
        for environ in [_environ(folder)]
        if environ.get("SLURM_JOB_NAME") == _NAME
        and json.loads(environ.get("TF_CONFIG", "{}")).get("task") == wanted
    )
    return found


def _environ(folder: pathlib.Path) -> dict[str, str]:
    try:
        text = (folder / "environ").read_text(errors="replace")
    except OSError:
        return {}
    return dict(part.split("=", 1) for part in text.split("\0") if "=" in part)


@pytest.mark.timeout(3 * _SECONDS)
def test_slurm_runs_the_job_and_runs_it_again(
    slurm: Slurm, tmp_path: pathlib.Path
) -> None:
    number = _submit(slurm, tmp_path)
    log = tmp_path / f"{_NAME}-{number}.log"

    def found(pattern: str) -> list[str]:
        return re.findall(pattern, log.read_text()) if log.exists() else []

    def wait_for(pattern: str, count: int = 1) -> None:
        slurm.wait_until(lambda: len(found(pattern)) >= count, _SECONDS)

    # A worker is killed, and comes back.
    wait_for("trains")
    assert json.loads(found("0: text (.*)")[0]) == _TEXT
    os.kill(_process_of("worker", 1), signal.SIGKILL)
    wait_for("seen WorkerReadmitted")
    # The chief is killed, and goes on from its backup.
    os.kill(_process_of("chief", 0), signal.SIGKILL)
    wait_for(r"begins at (\d+)", 2)
    # The time limit comes nearer: everything starts again.
    slurm.call("scancel", "--batch", "--signal=USR1", number)
    wait_for(r"begins at (\d+)", 3)
    begins = [int(each) for each in found(r"begins at (\d+)")]
    assert 0 == begins[0] < begins[1] <= begins[2]
    (tmp_path / "stop").touch()
    slurm.wait_until(lambda: not slurm.call("squeue", "-h"), _SECONDS)
    (ends,) = found(r"0: ends (\{.*\})")
    np.testing.assert_allclose(
        json.loads(ends)["weights"], train_when_deployed._WEIGHTS, atol=1e-3
    )
    state = slurm.call("scontrol", "show", "job", number)
    assert "JobState=COMPLETED" in state
    assert "ExitCode=0:0" in state
    assert "Restarts=1" in state
    for task in ("ps 0", "worker 0", "worker 1"):
        assert found(f"{task} ends: the job is over")
