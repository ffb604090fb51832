"""A program that dies with its launcher and then becomes another program.

A launcher that is killed with SIGKILL cannot end its children; only the kernel
can, on request. The request survives `exec`. Started as a file and without
site packages, it takes some hundredths of a second:

    python -I -S leash.py LAUNCHER_PID COMMAND ARGUMENTS...

Only Linux has such a request. On other systems the programs go on until they
notice that their cluster is gone.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # From <linux/prctl.h>.


def die_with(launcher_pid: int) -> None:
    """Asks the kernel to kill this process when its launcher dies.

    A sandbox may refuse the request; the process then goes on without it.

    Args:
        launcher_pid: The launcher's process id. If the launcher has died before
            the request, this process ends here.
    """
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != launcher_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: list[str]) -> None:
    """Binds this process to the launcher and becomes the command."""
    launcher_pid, *command = arguments
    die_with(int(launcher_pid))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
