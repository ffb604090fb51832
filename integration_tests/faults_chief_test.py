"""Tests of a chief that is killed or stopped in `fit`, and of its successor."""

import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import shared_counting
import train_with_backup as program

import tfps_plugin as tfps

# Each starts programs, and takes long.
pytestmark = pytest.mark.sample(cases=1, group="faults_chief")

_WORKERS, _PS = 2, 2
# This includes the import of TensorFlow, on a busy machine.
_PROGRAM_SECONDS = 120.0
# In the second of three epochs, between two backups.
_DIES_AT = (1, 16)
_BACKED_UP = (1, 10)
# Of tasks that have asked a chief in vain.
_MISSED = "the chief does not answer"
_SYNCHRONOUS = "--consistency", "sync"


@pytest.fixture
def cluster() -> Iterator[tfps.LocalCluster]:
    """Yields a cluster for one test: it ends with the second chief's job."""
    with tfps.LocalCluster(num_workers=_WORKERS, num_ps=_PS) as cluster:
        yield cluster


class _Chief:
    """A process that runs the program."""

    def __init__(
        self, cluster: tfps.LocalCluster, folder: pathlib.Path, *options: Any
    ) -> None:
        addresses = cluster.cluster_resolver.cluster_spec().as_dict()
        jobs = {job: addresses[job] for job in ("worker", "ps")}
        self._folder = folder
        self.process = subprocess.Popen(
            [
                *(sys.executable, program.__file__, str(folder)),
                *(json.dumps(jobs), *map(str, options)),
            ],
            env={
                **os.environ,
                "PYTHONPATH": str(pathlib.Path(__file__).parent.parent),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_until_stopped(self) -> None:
        """Waits until it has stopped itself."""
        stat = pathlib.Path(f"/proc/{self.process.pid}/stat")

        def is_stopped() -> bool:
            if self.process.poll() is not None:
                self.wait()
                pytest.fail("It has ended without stopping.")
            # The name, in parentheses, may contain anything.
            return stat.read_text().rpartition(")")[2].split()[0] == "T"

        shared_counting.wait_until(is_stopped, _PROGRAM_SECONDS)

    def wait(self, returncode: int = 0) -> str:
        """Waits for its end; returns its output."""
        try:
            said, _ = self.process.communicate(timeout=_PROGRAM_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            said, _ = self.process.communicate()
            pytest.fail(said[-20_000:])
        assert self.process.returncode == returncode, said[-20_000:]
        return said

    def result(self) -> dict[str, Any]:
        self.wait()
        text = (self._folder / "result.json").read_text()
        result: dict[str, Any] = json.loads(text)
        return result


def _pids(cluster: tfps.LocalCluster) -> dict[tuple[str, int], int]:
    tasks = [("worker", i) for i in range(_WORKERS)]
    tasks += [("ps", i) for i in range(_PS)]
    return {task: cluster.process(*task).pid for task in tasks}


def _break_off(
    cluster: tfps.LocalCluster, folder: pathlib.Path, *options: str
) -> None:
    """Kills a chief in `fit`; its backups are in the folder."""
    _Chief(cluster, folder, *options, "--die-at", *_DIES_AT).wait(
        -signal.SIGKILL
    )
    assert not (folder / "result.json").exists()


def _killed_and_started_again(
    cluster: tfps.LocalCluster, folder: pathlib.Path, *options: str
) -> dict[str, Any]:
    _break_off(cluster, folder, *options)
    return _Chief(cluster, folder, *options).result()


def _stopped_for_a_while(
    cluster: tfps.LocalCluster, folder: pathlib.Path, *options: str
) -> dict[str, Any]:
    """Stops a chief in `fit` until all tasks miss it."""
    chief = _Chief(cluster, folder, *options, "--stop-at", *_DIES_AT)
    try:
        chief.wait_until_stopped()
        shared_counting.wait_until(
            lambda: all(
                _MISSED in cluster.log(*task) for task in _pids(cluster)
            )
        )
    finally:
        chief.process.send_signal(signal.SIGCONT)
    return chief.result()


def _check_that_it_went_on(
    result: dict[str, Any], steps_an_update: int = 1
) -> None:
    """Checks that it went on from the last backup, without extra steps."""
    epoch, batch = _BACKED_UP
    *began_at, num_updates = result["began_at"]
    # At most the steps since the last backup are repeated.
    assert began_at == [epoch, batch]
    _check_number(num_updates, epoch * program.STEPS + batch, steps_an_update)
    assert len(result["losses"]) == program.EPOCHS - epoch
    assert result["losses"][-1] < result["losses"][0]
    assert result["is_finite"]


def _check_number(
    num_updates: int, num_steps: int, steps_an_update: int
) -> None:
    """Checks the number of updates; some may be of fewer steps."""
    assert num_steps / steps_an_update <= num_updates <= num_steps
    if steps_an_update > 1:
        assert num_updates <= num_steps / 2


@pytest.mark.parametrize("consistency", program.RULES)
def test_a_new_chief_goes_on_inside_the_epoch(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path, consistency: str
) -> None:
    rule = "--consistency", consistency
    pids = _pids(cluster)
    result = _killed_and_started_again(cluster, tmp_path, *rule)
    steps_an_update = getattr(program.RULES[consistency], "local_steps", 1)
    _check_that_it_went_on(result, steps_an_update)
    _check_number(
        result["iterations"], program.EPOCHS * program.STEPS, steps_an_update
    )
    # It has taken over the surviving tasks.
    assert _pids(cluster) == pids


@pytest.mark.parametrize("consistency", program.RULES)
def test_a_chief_that_was_stopped_goes_on_as_if_nothing_had_happened(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path, consistency: str
) -> None:
    pids = _pids(cluster)
    result = _stopped_for_a_while(
        cluster, tmp_path, "--consistency", consistency
    )
    assert result["began_at"] == [0, 0, 0]
    assert len(result["losses"]) == program.EPOCHS
    assert result["losses"][-1] < result["losses"][0]
    assert result["is_finite"]
    _check_number(
        result["iterations"],
        program.EPOCHS * program.STEPS,
        getattr(program.RULES[consistency], "local_steps", 1),
    )
    assert _pids(cluster) == pids


def test_a_ps_dies_while_a_new_chief_restores(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    _break_off(cluster, tmp_path)
    ps = cluster.process("ps", 1)
    chief = _Chief(cluster, tmp_path, "--kill-before-restoring", ps.pid)
    ps.wait(_PROGRAM_SECONDS)
    cluster.start("ps", 1)
    result = chief.result()
    _check_that_it_went_on(result)
    assert result["iterations"] >= program.EPOCHS * program.STEPS


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """Returns the result of a synchronous chief that nothing happens to."""
    with tfps.LocalCluster(num_workers=_WORKERS, num_ps=_PS) as cluster:
        folder = tmp_path_factory.mktemp("undisturbed")
        return _Chief(cluster, folder, *_SYNCHRONOUS).result()


@pytest.mark.parametrize(
    ("disturbed", "begins_at"),
    [
        (_killed_and_started_again, [1, 10, 50]),
        (_stopped_for_a_while, [0, 0, 0]),
    ],
)
def test_a_synchronous_chief_goes_on_to_the_weights_of_an_undisturbed_one(
    undisturbed: dict[str, Any],
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    disturbed: Callable[..., dict[str, Any]],
    begins_at: list[int],
) -> None:
    result = disturbed(cluster, tmp_path, *_SYNCHRONOUS)
    assert undisturbed["began_at"] == [0, 0, 0]
    assert result["began_at"] == begins_at
    assert result["iterations"] == undisturbed["iterations"]
    for ours, theirs in zip(
        result["weights"], undisturbed["weights"], strict=True
    ):
        largest = np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * largest)
