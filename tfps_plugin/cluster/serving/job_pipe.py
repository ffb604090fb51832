"""The pipe by which a launcher tells an evaluator that the chief has ended.

An evaluator is not part of the cluster: it has no server, and so no mailbox.
The launcher of the evaluator and the chief holds the other end of a pipe. It
closes that end when the chief has ended, or by its own death.
"""

import os
import select
import stat
from collections.abc import Mapping

# Holds the number of the file descriptor.
VARIABLE = "TFPS_JOB_PIPE"


def find(environ: Mapping[str, str]) -> int | None:
    """Returns the pipe that this process was given; None if there is none.

    Args:
        environ: The environment. A process that has merely inherited it has
            no such file descriptor, or another file under its number.
    """
    text = environ.get(VARIABLE, "")
    if not text.isdecimal():
        return None
    try:
        mode = os.fstat(int(text)).st_mode
    except OSError:
        return None
    return int(text) if stat.S_ISFIFO(mode) else None


def is_closed(pipe: int) -> bool:
    """Returns whether the other end is closed; never waits."""
    # Nothing is ever written, so only the end makes the pipe readable.
    return bool(select.select([pipe], [], [], 0)[0])
