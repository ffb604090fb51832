"""Tests of `tfps run` with real processes, signals and terminals."""

import contextlib
import io
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from collections.abc import Sequence

import pytest

_DEADLINE_SECONDS = 120
_TFPS = (sys.executable, "-m", "tfps_plugin")

# Waits for the test to open and close the named pipe.
_WAIT = "open(sys.argv[1]).read()"


@pytest.fixture
def fifo(tmp_path: pathlib.Path) -> str:
    """Returns a named pipe by which a test tells a script to go on."""
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    return path


class _Launcher:
    """A running `tfps run`, and its output so far."""

    def __init__(
        self,
        folder: pathlib.Path,
        script: str,
        arguments: Sequence[str] = (),
        options: Sequence[str] = ("--workers", "1", "--ps", "1"),
    ) -> None:
        path = folder / "script.py"
        path.write_text(script)
        self.process = subprocess.Popen(
            [*_TFPS, "run", *options, str(path), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.seen = ""

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Reads up to the line that contains `pattern`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen += line
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"{pattern!r} never came:\n{self.seen}")

    def finish(self) -> int:
        """Reads up to the end; returns the exit code."""
        assert self.process.stdout is not None
        self.seen += self.process.stdout.read()
        return self.process.wait(_DEADLINE_SECONDS)


@contextlib.contextmanager
def _running(launcher: _Launcher) -> Iterator[_Launcher]:
    with launcher.process:
        try:
            yield launcher
        finally:
            launcher.process.kill()


def test_every_task_knows_its_place_and_the_exit_code_comes_back(
    tmp_path: pathlib.Path,
) -> None:
    launcher = _Launcher(
        tmp_path,
        "import os, sys\nprint(os.environ['TF_CONFIG'])\n"
        "print(sys.argv[1:])\nsys.exit(7)",
        arguments=["--workers", "9", "--", "x"],
        options=["--workers", "2", "--ps", "1", "--evaluator"],
    )
    with _running(launcher):
        chief = json.loads(launcher.wait_for(r"^chief +\| ({.*})$")[1])
        assert launcher.finish() == 7
    assert chief["task"] == {"type": "chief", "index": 0}
    addresses = [
        address
        for job, job_addresses in chief["cluster"].items()
        if job != "evaluator"
        for address in job_addresses
    ]
    assert len(set(addresses)) == 4
    assert all(address.startswith("127.0.0.1:") for address in addresses)
    assert "['--workers', '9', '--', 'x']" in launcher.seen
    assert re.search(
        r"started ps 0 .*worker 0 .*worker 1 .*chief .*evaluator", launcher.seen
    )
    assert "\x1b" not in launcher.seen


def test_with_json_every_line_is_an_object(tmp_path: pathlib.Path) -> None:
    launcher = _Launcher(
        tmp_path,
        "import json, logging\nimport tfps_plugin as tfps\n"
        "from tfps_plugin.cluster import health, tf_config\n"
        "from tfps_plugin.monitoring.events import Events\n"
        "tasks = tf_config.read_tf_config().cluster.serving_tasks\n"
        f"health.wait_until_ready(tasks, {_DEADLINE_SECONDS})\n"
        "print('mine'); print(json.dumps(dict(loss=1)))\n"
        "Events().publish(tfps.events.WorkerLost(1, 'a:1', 'gone'))\n"
        "logging.getLogger('mine').warning('careful')\n",
        options=["--workers", "1", "--ps", "1", "--log-format", "json"],
    )
    with _running(launcher):
        assert launcher.finish() == 0
    lines = [json.loads(line) for line in launcher.seen.splitlines()]
    assert {"loss": 1} in lines
    said = {line["message"]: line for line in lines if "message" in line}
    assert said["mine"]["task"] == "chief"
    assert said["careful"]["logger"] == "mine"
    assert any(text.startswith("worker 0 serves at") for text in said)
    (lost,) = [line for line in lines if "event" in line]
    assert lost["logger"] == "tfps_plugin.monitoring"
    assert lost["fields"] == {
        "worker_index": 1,
        "address": "a:1",
        "reason": "gone",
    }


def test_a_program_that_raises_ends(tmp_path: pathlib.Path) -> None:
    # Its tasks still know a function of it then.
    launcher = _Launcher(
        tmp_path,
        "import tensorflow as tf\nimport tfps_plugin as tfps\n"
        "strategy = tfps.ParameterServerStrategy()\n"
        "coordinator = tfps.ClusterCoordinator(strategy)\n"
        "@tf.function\ndef step():\n  return tf.constant(1)\n"
        "print(coordinator.fetch(coordinator.schedule(step)))\n"
        "raise ValueError('mine')\n",
    )
    with _running(launcher):
        assert launcher.finish() == 1
    assert "ValueError: mine" in launcher.seen


def test_every_task_serves_at_its_address(tmp_path: pathlib.Path) -> None:
    launcher = _Launcher(
        tmp_path,
        "from tfps_plugin.cluster import health, tf_config\n"
        "tasks = tf_config.read_tf_config().cluster.serving_tasks\n"
        f"health.wait_until_ready(tasks, {_DEADLINE_SECONDS})\n"
        "print('ready:', *tasks, sep=' / ')",
        options=["--workers", "2", "--ps", "1"],
    )
    with _running(launcher):
        launcher.wait_for("ready: / worker 0 / worker 1 / ps 0")
        assert launcher.finish() == 0


def test_ctrl_c_interrupts_the_script(
    tmp_path: pathlib.Path, fifo: str
) -> None:
    launcher = _Launcher(
        tmp_path,
        "import sys\n"
        f"try:\n  print('ready')\n  {_WAIT}\n"
        "except KeyboardInterrupt:\n  print('saved')\n  sys.exit(5)",
        arguments=[fifo],
    )
    with _running(launcher):
        launcher.wait_for("ready")
        launcher.process.send_signal(signal.SIGINT)
        launcher.wait_for("saved")
        assert launcher.finish() == 5


def test_a_worker_that_is_killed_is_reported(
    tmp_path: pathlib.Path, fifo: str
) -> None:
    launcher = _Launcher(
        tmp_path,
        f"import sys\n{_WAIT}\nprint('the chief goes on')",
        arguments=[fifo],
    )
    with _running(launcher):
        worker = int(launcher.wait_for(r"worker 0 \(pid (\d+)\)")[1])
        os.kill(worker, signal.SIGKILL)
        launcher.wait_for(r"tfps +\| worker 0 was killed by SIGKILL")
        pathlib.Path(fifo).write_text("go on")
        assert launcher.finish() == 0
    assert "the chief goes on" in launcher.seen


def test_nobody_outlives_a_launcher_that_is_killed(
    tmp_path: pathlib.Path, fifo: str
) -> None:
    launcher = _Launcher(
        tmp_path, f"import sys\nprint('ready')\n{_WAIT}", arguments=[fifo]
    )
    with _running(launcher):
        launcher.wait_for("ready")
        launcher.process.kill()
        # The pipe ends when the last process that holds it has ended.
        assert launcher.finish() == -signal.SIGKILL


def _read_until(terminal: io.FileIO, expected: bytes) -> bytes:
    """Reads the terminal up to `expected`."""
    seen = b""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while expected not in seen:
        left_seconds = deadline - time.monotonic()
        if not select.select([terminal], [], [], max(0, left_seconds))[0]:
            raise AssertionError(f"{expected!r} never came: {seen!r}")
        try:
            seen += terminal.read(4096)
        except OSError as error:  # Nobody holds the other end any more.
            raise AssertionError(
                f"{expected!r} never came: {seen!r}"
            ) from error
    return seen


_IN_A_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY)
os.execv(sys.argv[1], sys.argv[1:])
"""


@contextlib.contextmanager
def _in_terminal(
    script: pathlib.Path, *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], io.FileIO]]:
    """Runs a script on a cluster; yields the launcher and its terminal."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (30, 100))
    options = ("--workers", "1", "--ps", "1")
    command = [*_TFPS, "run", *options, str(script), *arguments]
    with open(ours, "r+b", buffering=0) as terminal:
        process = subprocess.Popen(
            [sys.executable, "-c", _IN_A_TERMINAL, *command],
            stdin=its,
            stdout=its,
            stderr=its,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(its)
        with process:
            try:
                yield process, terminal
            finally:
                process.kill()


def test_in_a_terminal_the_script_draws_as_it_likes(
    tmp_path: pathlib.Path, fifo: str
) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import sys\n"
        "print(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty())\n"
        "try:\n"
        "  print('\\b\\b\\r50%', end='', flush=True)\n"
        f"  {_WAIT}\n"
        "except KeyboardInterrupt:\n"
        "  print(' stopped by hand')\n"
    )
    with _in_terminal(path, fifo) as (process, terminal):
        seen = _read_until(terminal, b"50%")
        terminal.write(b"\x03")  # Ctrl-C
        seen += _read_until(terminal, b"chief ended")
        process.wait(_DEADLINE_SECONDS)
    assert process.returncode == 0
    assert b"True True True\r\n" in seen
    assert b"\b\b\r50%" in seen
    assert b" stopped by hand\r\n" in seen
    assert re.search(rb"\r\x1b\[K\x1b\[36mtfps +\| \x1b\[0mstarted", seen)
    assert seen.count(b"interrupted (SIGINT)") == 1


# The script prompts, draws a bar and reports trouble, all on standard error.
_TALKS = """
import os, sys, time
def say(text):
    print(text, end='', file=sys.stderr, flush=True)
say(sys.argv[1] + '\\n')
say(f'{os.get_terminal_size(2).columns} columns\\n')
say(sys.argv[1] + '\\n')
# Without the readline module Python writes the question to standard error.
print('Hello', input('WAR'))
while os.get_terminal_size(2).columns != 90:
    time.sleep(0.01)
say('\\r1/2')
say('\\r2/2\\n')
sys.exit('I0000 00:00: trouble')
"""
_NOISE = (
    "WARNING: All log messages before absl::InitializeLog() is called are "
    "written to STDERR"
)


def test_in_a_terminal_only_noise_is_missing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(_TALKS)
    with _in_terminal(path, _NOISE) as (process, terminal):
        # This does not end its line, and begins like noise, but still arrives.
        seen = _read_until(terminal, b"WAR")
        termios.tcsetwinsize(terminal, (30, 90))
        terminal.write(b"you\n")
        seen += _read_until(terminal, b"add --tensorflow-logs")
        process.wait(_DEADLINE_SECONDS)
    assert process.returncode == 1
    assert _NOISE.encode() not in seen
    assert b"100 columns\r\n" in seen
    assert b"Hello you\r\n" in seen
    assert b"\r1/2\r2/2\r\n" in seen
    assert b"I0000 00:00: trouble\r\n" in seen
    assert re.search(rb"chief ended with exit code 1", seen)


_IMPORTS_TENSORFLOW = (
    "import os, sys\nimport tensorflow\n"
    "print('level', os.environ['TF_CPP_MIN_LOG_LEVEL'], flush=True)\n"
    "sys.stderr.write('an error')"
)


def test_tensorflow_starts_quietly(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is set for all tests, but not for users.
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    launcher = _Launcher(tmp_path, _IMPORTS_TENSORFLOW)
    with _running(launcher):
        assert launcher.finish() == 0
    chief = re.findall(r"^chief +\| (.*)$", launcher.seen, re.MULTILINE)
    assert chief == ["level 2", "an error"]
    assert not re.search(r"\| [IWE]0000 ", launcher.seen)


def test_tensorflow_may_say_everything(tmp_path: pathlib.Path) -> None:
    launcher = _Launcher(
        tmp_path,
        _IMPORTS_TENSORFLOW,
        options=["--workers", "1", "--ps", "1", "--tensorflow-logs"],
    )
    with _running(launcher):
        assert launcher.finish() == 0
    assert "| level 0\n" in launcher.seen
    # Every release of TensorFlow logs this, on every machine.
    assert re.search(r"chief +\| .*cpu_feature_guard\.cc", launcher.seen)


@pytest.mark.parametrize("command", [["--help"], ["run", "--help"]])
def test_help_answers_at_once(command: list[str]) -> None:
    # Take the best of several, because of other load on the machine.
    best_seconds = float("inf")
    for _ in range(5):
        start = time.monotonic()
        subprocess.run([*_TFPS, *command], capture_output=True, check=True)
        best_seconds = min(best_seconds, time.monotonic() - start)
    assert best_seconds < 0.5
