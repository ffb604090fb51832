"""Exit codes of processes, in words and as our own exit code."""

import signal
from collections.abc import Sequence

# A shell adds it to the number of the signal that ended a program.
_SHELL_SIGNAL_BASE = 128

# Signals with a usual cause that is worth naming.
_HINTS = {
    signal.SIGKILL: "by hand, or by the kernel because memory ran out",
    signal.SIGABRT: "its own runtime gave up: see its log",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "often a full /dev/shm or disk",
}


def exit_status(returncode: int) -> int:
    """Returns the exit code that a shell would give a process.

    Args:
        returncode: The exit code, as in `subprocess`: negative for a signal.
    """
    if returncode < 0:
        return _SHELL_SIGNAL_BASE - returncode
    return returncode


def describe(returncode: int) -> str:
    """Returns words: "ended with exit code 3", "was killed by SIGKILL"."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    number = -returncode
    try:
        known = signal.Signals(number)
    except ValueError:
        return f"was killed by signal {number}"
    hint = _HINTS.get(known)
    details = f"signal {number}; {hint}" if hint else f"signal {number}"
    return f"was killed by {known.name} ({details})"


def death_report(
    name: str,
    returncode: int,
    *,
    elapsed_seconds: float,
    last_lines: Sequence[str] | None,
    consequence: str,
) -> list[str]:
    """Returns the lines that report a task's death.

    Args:
        name: The task's name: "worker 1".
        returncode: The exit code, as in `subprocess`.
        elapsed_seconds: The time for which it ran.
        last_lines: The end of its log; None if that went to the terminal.
        consequence: A sentence that says what happens next.
    """
    report = [f"{name} {describe(returncode)} after {elapsed_seconds:.1f} s."]
    if last_lines is not None:
        report.append(f"Last lines of {name}:")
        report += [f"  {line}" for line in last_lines] or ["  (none)"]
    return [*report, consequence]
