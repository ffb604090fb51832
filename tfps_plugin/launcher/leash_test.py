import os
import pathlib
import select
import signal
import subprocess
import sys

import pytest

from tfps_plugin.launcher import leash

_LEASH = str(pathlib.Path(leash.__file__))
_DEADLINE_SECONDS = 20

# Starts a child on the leash, says "ready" when it runs, and dies the hard
# way. The child holds the pipe open until it dies itself.
_LAUNCHER = """
import os, signal, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-I", "-S", sys.argv[1], str(os.getpid()), sys.executable,
     "-c", "import signal; print('ready', flush=True); signal.pause()"],
    stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's prctl")
def test_a_child_dies_with_a_launcher_that_is_killed() -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER, _LEASH], stdout=subprocess.PIPE
    )
    with launcher:
        assert launcher.stdout is not None
        child = os.pidfd_open(int(launcher.stdout.readline()))
        try:
            assert not select.select([child], [], [], 0)[0]
            launcher.kill()
            assert select.select([child], [], [], _DEADLINE_SECONDS)[0]
        finally:
            os.close(child)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's prctl")
def test_a_child_whose_launcher_is_gone_already_dies_at_once() -> None:
    nobody = 2**22  # One more than the largest process id.
    result = subprocess.run(
        [sys.executable, _LEASH, str(nobody), sys.executable, "-c", "pass"],
        timeout=_DEADLINE_SECONDS,
    )
    assert result.returncode == -signal.SIGKILL


def test_becomes_the_command() -> None:
    result = subprocess.run(
        [
            *(sys.executable, "-I", "-S", _LEASH, str(os.getpid())),
            *(sys.executable, "-c", "import sys; sys.exit(len(sys.argv))"),
            *("--one", "two words"),
        ],
        timeout=_DEADLINE_SECONDS,
    )
    assert result.returncode == 3
