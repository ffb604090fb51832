"""Tests of `tfps scale`, which changes the tasks of a running `tfps run`."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

_DEADLINE_SECONDS = 120
_TFPS = (sys.executable, "-m", "tfps_plugin")
# Counts in a table that is cut over the parameter servers, until told to end.
_SCRIPT = """
import sys
import threading

import tensorflow as tf
import tfps_plugin as tfps
from tfps_plugin.coordinator.elastic import follower

follower.INTERVAL_SECONDS = 0.5  # so that the test is short
strategy = tfps.ParameterServerStrategy(
    RESOLVER
    variable_partitioner=tfps.partitioners.FixedShardsPartitioner(2)
)
coordinator = tfps.ClusterCoordinator(strategy)
with strategy.scope():
    table = tf.Variable(tf.zeros([8, 2]))


def note(event):
    index = getattr(event, "worker_index", None)
    if index is None:
        index = getattr(event, "ps_indices", None)
    print(type(event).__name__, index, flush=True)


@tf.function
def step():
    table.assign_add(tf.ones([8, 2]))


coordinator.events.subscribe(note)
print("begun with", coordinator.num_workers, coordinator.num_ps, flush=True)
is_told = threading.Event()


def wait_until_told():
    open(sys.argv[1]).read()
    is_told.set()


threading.Thread(target=wait_until_told).start()
steps = 0
while not is_told.wait(0.02):
    coordinator.schedule(step)
    steps += 1
coordinator.join()
assert (table.numpy() == steps).all(), (table, steps)
print(
    "ended with", coordinator.worker_indices, coordinator.ps_indices, flush=True
)
"""


def _scale(pid: int, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_TFPS, "scale", *options, f"--job={pid}"],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    "resolver",
    ["", "tf.distribute.cluster_resolver.TFConfigClusterResolver(),"],
    ids=["none", "TF_CONFIG"],
)
def test_tasks_come_and_go_on_request(
    tmp_path: pathlib.Path, resolver: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT.replace("RESOLVER", resolver))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    launcher = subprocess.Popen(
        [*_TFPS, "run", "--workers=2:3", "--ps=1:2", str(script), str(fifo)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert launcher.stdout is not None
    seen = ""

    def wait_for(*patterns: str) -> None:
        """Reads lines until each pattern was seen, in any order."""
        nonlocal seen
        assert launcher.stdout is not None
        missing = set(patterns)
        for line in launcher.stdout:
            seen += line
            missing -= {each for each in missing if re.search(each, line)}
            if not missing:
                return
        raise AssertionError(f"no {missing} in:\n{seen}")

    def scale(*options: str) -> str:
        answer = _scale(launcher.pid, *options)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    try:
        wait_for("begun with 2 1")
        refused = _scale(launcher.pid, "--workers=3", "--ps=5")
        assert refused.returncode == 1
        assert "Expected 1 to 2 parameter servers" in refused.stderr
        assert scale("--workers=3", "--ps=2") == (
            "3 workers and 2 parameter servers from now on; "
            "2 workers and 1 parameter server before.\n"
        )
        wait_for(
            *("started worker 2", "WorkerJoined 2"),
            *("started ps 1", r"ParameterServersChanged \(0, 1\)"),
        )
        assert scale("--workers=2").startswith("2 workers and 2 parameter")
        assert scale("--ps=1").startswith("2 workers and 1 parameter server ")
        wait_for("WorkerLeft 2", r"ParameterServersChanged \(0,\)")
        # Their indices, and addresses, are there again.
        scale("--workers=3", "--ps=2")
        wait_for("WorkerJoined 2", r"ParameterServersChanged \(0, 1\)")
        fifo.write_text("")
        wait_for(r"ended with \(0, 1, 2\) \(0, 1\)")
        assert launcher.wait(_DEADLINE_SECONDS) == 0
        assert "Last lines of" not in seen, "a removed task has not failed"
    finally:
        launcher.kill()
        launcher.wait()
        launcher.stdout.close()


def test_a_job_that_does_not_run_is_told_of() -> None:
    answer = _scale(1, "--workers=3")
    assert answer.returncode == 1
    assert "There is no such job" in answer.stderr
