"""Tests of `tfps scale`, which changes the workers of a running `tfps run`."""

import os
import pathlib
import re
import subprocess
import sys

_DEADLINE_SECONDS = 120
_TFPS = (sys.executable, "-m", "tfps_plugin")
_SCRIPT = """
import sys
import tfps_plugin as tfps

strategy = tfps.ParameterServerStrategy()
coordinator = tfps.ClusterCoordinator(strategy)


def note(event):
    print(type(event).__name__, event.worker_index, flush=True)


coordinator.events.subscribe(note)
print("begun with", coordinator.num_workers, flush=True)
open(sys.argv[1]).read()
print("ended with", coordinator.worker_indices, flush=True)
"""


def _scale(pid: int, number: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_TFPS, "scale", f"--workers={number}", f"--job={pid}"],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECONDS,
        check=False,
    )


def test_workers_come_and_go_on_request(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    launcher = subprocess.Popen(
        [*_TFPS, "run", "--workers=2:3", "--ps=1", str(script), str(fifo)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert launcher.stdout is not None
    seen = ""

    def wait_for(pattern: str) -> None:
        nonlocal seen
        assert launcher.stdout is not None
        for line in launcher.stdout:
            seen += line
            if re.search(pattern, line):
                return
        raise AssertionError(f"no {pattern!r} in:\n{seen}")

    try:
        wait_for("begun with 2")
        refused = _scale(launcher.pid, 4)
        assert refused.returncode == 1
        assert "Expected 1 to 3 workers" in refused.stderr
        assert "3 from now on" in _scale(launcher.pid, 3).stdout
        wait_for("started worker 2")
        wait_for("WorkerJoined 2")
        assert "2 from now on" in _scale(launcher.pid, 2).stdout
        wait_for("WorkerLeft 2")
        # Its index, and address, are there again.
        assert "3 from now on" in _scale(launcher.pid, 3).stdout
        wait_for("WorkerJoined 2")
        fifo.write_text("")
        wait_for(r"ended with \(0, 1, 2\)")
        assert launcher.wait(_DEADLINE_SECONDS) == 0
    finally:
        launcher.kill()
        launcher.wait()
        launcher.stdout.close()


def test_a_job_that_does_not_run_is_told_of() -> None:
    answer = _scale(1, 3)
    assert answer.returncode == 1
    assert "There is no such job" in answer.stderr
