"""Has tasks keep tensors in large pages of memory.

A step gathers rows from anywhere in tables of many megabytes. With pages of
4 KiB the processor looks for the page of nearly each row in memory first; of
2 MiB it remembers where hundreds of megabytes are. Linux gives programs such
pages that ask for them, and glibc asks where its environment says so, which it
reads when a process begins.
"""

import contextlib
import os
import pathlib
import platform
import sys
from collections.abc import Mapping

# Where a user sets malloc: one variable for all, or one for each setting.
_TUNABLES = "GLIBC_TUNABLES"
_MALLOC = "glibc.malloc."
_SINGLE_PREFIX = "MALLOC_"
_OURS = f"{_MALLOC}hugetlb=1"
# Of a process that has begun again. The setting itself may not come through:
# glibc drops it where a program has more rights than who starts it.
_HAS_BEGUN_AGAIN = "TFPS_HAS_BEGUN_AGAIN"
# What Linux does, in brackets: "always [madvise] never".
_LINUX_GIVES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
_TO_WHO_ASKS = "[madvise]"


def variables(
    environment: Mapping[str, str], linux_gives: pathlib.Path = _LINUX_GIVES
) -> dict[str, str]:
    """The environment variables with which a new process has large pages.

    Args:
        environment: Of the new process otherwise. Settings of malloc that a
            user has made there are left as they are.
        linux_gives: The file in which Linux says who gets such pages.

    Returns:
        Those to add; none where they would change nothing.
    """
    before = environment.get(_TUNABLES, "")
    if _OURS in before or is_set_by_user(environment):
        return {}
    try:
        is_theirs_to_ask = _TO_WHO_ASKS in linux_gives.read_text()
    except OSError:
        return {}  # not Linux, or one without
    if not is_theirs_to_ask or platform.libc_ver()[0] != "glibc":
        return {}
    return {_TUNABLES: f"{before}:{_OURS}" if before else _OURS}


def is_set_by_user(environment: Mapping[str, str]) -> bool:
    """Whether somebody else has made settings of malloc."""
    others = environment.get(_TUNABLES, "").replace(_OURS, "")
    return _MALLOC in others or any(
        name.startswith(_SINGLE_PREFIX) for name in environment
    )


def begin_again() -> None:
    """Has this process begin again with large pages, if it has none.

    Call it before anything else is begun: what follows `exec` is this program,
    with the same arguments, in the same process. It does so once; where it
    cannot, it goes on without.
    """
    added = variables(os.environ)
    if not added or _HAS_BEGUN_AGAIN in os.environ or not sys.executable:
        return
    with contextlib.suppress(OSError):
        os.execve(
            sys.executable,
            [sys.executable, *sys.orig_argv[1:]],
            {**os.environ, **added, _HAS_BEGUN_AGAIN: "1"},
        )
