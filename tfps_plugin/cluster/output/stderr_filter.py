"""Standard error of this process, without TensorFlow's noise.

TensorFlow's native code writes to the file descriptor itself. So a process of
its own, the filter, reads what this process writes there, and passes it on. It
outlives this process: nothing is lost, not even the last words of a crash. If
standard error is a terminal, this process still finds one, as wide as the
real one.

This module is also the program of the filter, which needs nothing but Python.
"""

import atexit
import contextlib
import errno
import os
import pathlib
import select
import signal
import subprocess
import sys
import termios
import tty
from types import FrameType

# As a program it is found by its path.
if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))

from tfps_plugin.cluster.output.tensorflow_noise import NoiseFilter

_STDIN = 0
_STDERR = 2
_CHUNK_BYTES = 64 * 1024
# As in the relay of the launcher: a logger writes whole lines, and a person
# does not notice the wait.
_HOLD_SECONDS = 0.1
# The time that the filter has to write the last lines. It only needs it if
# another process still writes to it, too.
_END_SECONDS = 1.0
# The filter ends with the last process that writes to it.
_NOT_FOR_THE_FILTER = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGTSTP,
    signal.SIGTTOU,
)


def install() -> bool:
    """Filters the standard error of this process, from here to its end.

    Returns:
        Whether it is filtered. It is not if there is no standard error, if
        the filter cannot be started, or if it could not outlive this process:
        with the first process of a container all others die, and with the
        first one of a terminal, as by `ssh -t host python train.py`, the
        terminal is gone.

    Threading: call it before other threads write to standard error.
    """
    if not sys.executable or os.getpid() == 1:
        return False
    try:
        is_terminal = os.isatty(_STDERR)
        if is_terminal and os.getsid(0) == os.getpid():
            return False
        before = os.dup(_STDERR)
    except OSError:
        return False
    try:
        if is_terminal:
            ours, programs = os.openpty()
            tty.setraw(programs)
            _copy_size(_STDERR, ours)
        else:
            ours, programs = os.pipe()
    except OSError:
        os.close(before)
        return False
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(pathlib.Path(__file__))],
            stdin=ours,
            stdout=subprocess.DEVNULL,
        )
    except OSError:
        for descriptor in (before, ours, programs):
            os.close(descriptor)
        return False
    os.close(ours)
    _flush()
    os.dup2(programs, _STDERR)
    os.close(programs)
    atexit.register(_uninstall, process, before, os.getpid())
    return True


def _uninstall(
    process: subprocess.Popen[bytes], before: int, process_id: int
) -> None:
    """Waits until all is shown, so that nothing comes after the program."""
    if os.getpid() != process_id:
        # A fork of this process ends.
        return
    _flush()
    os.dup2(before, _STDERR)
    os.close(before)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)


def _flush() -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def _copy_size(terminal: int, to: int) -> None:
    # A terminal that has just been closed has no size.
    with contextlib.suppress(termios.error):
        termios.tcsetwinsize(to, termios.tcgetwinsize(terminal))


def _resize(number: int, frame: FrameType | None) -> None:
    _copy_size(_STDERR, _STDIN)


def _read() -> bytes:
    try:
        return os.read(_STDIN, _CHUNK_BYTES)
    except OSError as error:
        # Linux reports so the end of a terminal that no process holds.
        if error.errno != errno.EIO:
            raise
        return b""


def _write(data: bytes) -> None:
    while data:
        try:
            data = data[os.write(_STDERR, data) :]
        except BlockingIOError:
            # Another process that has it, too, may have made it so.
            select.select([], [_STDERR], [])


def main() -> None:
    """Passes on standard input to standard error, without the noise."""
    for number in _NOT_FOR_THE_FILTER:
        signal.signal(number, signal.SIG_IGN)
    if os.isatty(_STDIN):
        signal.signal(signal.SIGWINCH, _resize)
        _resize(signal.SIGWINCH, None)
    noise_filter = NoiseFilter()
    while True:
        wait_seconds = _HOLD_SECONDS if noise_filter.is_holding else None
        if not select.select([_STDIN], [], [], wait_seconds)[0]:
            _write(noise_filter.release())
        elif data := _read():
            _write(noise_filter.feed(data))
        else:
            _write(noise_filter.release())
            return


if __name__ == "__main__":
    main()
