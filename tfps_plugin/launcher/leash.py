"""Runs inside a child process: makes it die with its launcher, then becomes
the program.

Nothing that a launcher does at its end helps when it is killed with SIGKILL;
the kernel has to do it. The request to do so survives `exec`. Started as a
file and without the site packages, which takes some hundredths of a second:

    python -I -S leash.py LAUNCHER_PID COMMAND ARGUMENTS...

The kernels of other systems than Linux know no such request; there the
programs live on until they notice that their cluster is gone.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # From <linux/prctl.h>.


def die_with(launcher_pid: int) -> None:
    """Has this process killed when the process that started it dies.

    Args:
        launcher_pid: Who started it. If that has died before the request was
            made, this process ends here.
    """
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != launcher_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: list[str]) -> None:
    """Ties itself to the launcher and becomes the command."""
    launcher_pid, *command = arguments
    die_with(int(launcher_pid))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
