"""What the end of a process means, in words and as our own exit code."""

import signal
from collections.abc import Sequence

# What a shell adds to the number of the signal that ended a program.
_SHELL_SIGNAL_BASE = 128

# Deaths whose usual reason is worth a word.
_HINTS = {
    signal.SIGKILL: "by hand, or by the kernel because memory ran out",
    signal.SIGABRT: "its own runtime gave up: see its log",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "often a full /dev/shm or disk",
}


def exit_status(returncode: int) -> int:
    """The exit code that passes on how a process ended, as shells do.

    Args:
        returncode: As `subprocess` counts: negative for a signal.
    """
    if returncode < 0:
        return _SHELL_SIGNAL_BASE - returncode
    return returncode


def describe(returncode: int) -> str:
    """In words: "ended with exit code 3", "was killed by SIGKILL (...)"."""
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
    """The lines that tell of a task's death.

    Args:
        name: The task, "worker 1".
        returncode: How it ended, as `subprocess` counts.
        elapsed_seconds: How long it lived.
        last_lines: The end of its log; None if that went to the terminal.
        consequence: What happens now.
    """
    report = [f"{name} {describe(returncode)} after {elapsed_seconds:.1f} s."]
    if last_lines is not None:
        report.append(f"Last lines of {name}:")
        report += [f"  {line}" for line in last_lines] or ["  (none)"]
    return [*report, consequence]
