import contextlib
import fcntl
import os
import pty
import subprocess
import sys
from collections.abc import Sequence

import pytest

_NOISE = (
    "I0000 00:00:1795658268.596476   10966 cudart_stub.cc:31] Could not find "
    "cuda drivers on your machine, GPU will not be used."
)
_ERROR = "E0000 00:00:1795658268.596476   10966 mine.cc:31] an error"
_BEGIN = f"""
import os, subprocess, sys
import tfps_plugin.quiet
os.write(2, b"{_NOISE}\\n{_ERROR}\\n")
"""
_TIMEOUT_SECONDS = 30


def _run(program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "TF_CPP_MIN_LOG_LEVEL"
    }
    return subprocess.run(
        [sys.executable, "-c", _BEGIN + program],
        env={**kept, **environ},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )


def _run_in_terminal(command: Sequence[str]) -> str:
    """Runs a shell's command in a terminal; returns what is on its screen."""
    screen, terminal = pty.openpty()
    with subprocess.Popen(
        # The first process of a terminal is a shell.
        ["sh", "-c", '"$@"; code=$?; exit $code', "sh", *command],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    ) as process:
        os.close(terminal)
        seen = b""
        # Linux reports so that no process has the terminal any more.
        with contextlib.suppress(OSError):
            while data := os.read(screen, 4096):
                seen += data
        os.close(screen)
        process.wait(_TIMEOUT_SECONDS)
    return seen.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("end", "code", "last"),
    [
        ("print('mine', file=sys.stderr)", 0, "mine\n"),
        ("os.write(2, b'no end'); os._exit(3)", 3, "no end"),
        ("os.write(2, b'last words'); os.abort()", -6, "last words"),
        ("subprocess.run(['sh', '-c', 'echo child >&2'])", 0, "child\n"),
        ("os.fork() or os._exit(0); os.wait()", 0, ""),
    ],
)
def test_only_noise_is_lost(end: str, code: int, last: str) -> None:
    ended = _run(end)
    assert ended.returncode == code
    assert ended.stderr == f"{_ERROR}\n{last}"


def test_an_exception_is_shown() -> None:
    ended = _run("1 / 0")
    assert ended.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_whoever_asks_tensorflow_for_more_gets_it() -> None:
    assert _NOISE in _run("", TF_CPP_MIN_LOG_LEVEL="1").stderr


def test_children_log_errors_only() -> None:
    ended = _run("print(os.environ['TF_CPP_MIN_LOG_LEVEL'])")
    assert ended.stdout == "2\n"


def test_a_terminal_stays_one() -> None:
    program = _BEGIN + "print(sys.stderr.isatty(), 'end', file=sys.stderr)"
    seen = _run_in_terminal([sys.executable, "-c", program])
    assert seen == f"{_ERROR}\nTrue end\n"


def test_without_standard_error_nothing_happens() -> None:
    program = "import tfps_plugin.quiet; print('ran')"
    ended = subprocess.run(
        ["sh", "-c", '"$@" 2>&-', "sh", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=True,
    )
    assert ended.stdout == "ran\n"


def test_nothing_is_lost_where_writes_do_not_block() -> None:
    """Another process that has the same pipe or terminal may have set so."""
    ours, programs = os.pipe()
    # Less room than the filter has to write at once.
    fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(programs, False)
    program = _BEGIN + "os.write(2, b'x' * 300_000 + b'end')"
    with (
        open(ours, "rb", buffering=0) as reader,
        subprocess.Popen(
            [sys.executable, "-c", program], stderr=programs
        ) as process,
    ):
        os.close(programs)
        seen = reader.readall()
        assert process.wait(_TIMEOUT_SECONDS) == 0
    assert seen.decode() == f"{_ERROR}\n{'x' * 300_000}end"
