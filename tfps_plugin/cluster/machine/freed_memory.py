"""Keeps memory that a step has freed for the next one.

TensorFlow takes the memory of each tensor from malloc. As glibc has it, what
is freed at the end of memory goes back to Linux, page by page, and comes again
for the next step, page by page and filled with zeros.
"""

import ctypes
from collections.abc import Mapping

from tfps_plugin.cluster.machine import large_pages

# Names of glibc's <malloc.h>, and their values there.
_M_MXFAST = 1
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
# glibc comes to the first two by itself, once tensors of 32 MiB have been
# freed: larger ones go back at once, always.
_SETTINGS = {
    _M_MMAP_THRESHOLD: 32 << 20,
    _M_TRIM_THRESHOLD: 1 << 30,
    # A thread's memory comes in pieces of up to 64 MiB, and glibc asks for
    # large pages (`large_pages`) only for what a piece begins with, not for
    # what it grows by: so it is as large from the beginning. What nobody has
    # written to takes no memory.
    _M_TOP_PAD: 64 << 20,
    # Small blocks, once freed, join their neighbours. Else they are kept apart
    # until 64 KiB are freed at once, and then all of them are looked through.
    _M_MXFAST: 0,
}


def keep(environment: Mapping[str, str]) -> bool:
    """Has malloc keep what is freed in blocks below 32 MiB, in this process.

    Each thread's share of memory ends with at most 64 MiB that it keeps so.

    Args:
        environment: The environment variables. Settings of malloc that a user
            has made there are left as they are.

    Returns:
        Whether it was done; not with the settings of a user, nor where there
        is no glibc.
    """
    if large_pages.is_set_by_user(environment):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return all(mallopt(*setting) == 1 for setting in _SETTINGS.items())
