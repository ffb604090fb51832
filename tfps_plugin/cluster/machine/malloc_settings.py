"""Settings of glibc's malloc for the environment of tuned tasks.

TensorFlow takes the memory of each tensor from malloc, on many threads. glibc
reads these settings when a process begins, so only the process that starts a
task can make them.
"""

import pathlib
import platform
from collections.abc import Mapping

from tfps_plugin.cluster.machine import usable_cores

# A user sets malloc with one variable for all settings or one for each.
_TUNABLES = "GLIBC_TUNABLES"
_MALLOC = "glibc.malloc."
_SINGLE_PREFIX = "MALLOC_"
_LARGE_PAGES = "hugetlb=1"
_SETTINGS = (
    # Tensors below 32 MiB come from memory that malloc already has, and the end
    # of its memory goes back to Linux only from 128 MiB. Otherwise a step takes
    # the same pages again and again, and Linux fills them with zeros. glibc
    # comes to similar numbers by itself once it has freed a tensor of 32 MiB.
    f"mmap_threshold={32 << 20}",
    f"trim_threshold={128 << 20}",
    # Small blocks join their neighbors when they are freed. Otherwise they wait
    # until 64 KiB are freed at once, and then glibc looks through all of them.
    "mxfast=0",
)
# Linux marks its choice with brackets: "always [madvise] never".
_LINUX_CHOICE = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
_ON_REQUEST = "[madvise]"


def variables(
    environment: Mapping[str, str], linux_choice: pathlib.Path = _LINUX_CHOICE
) -> dict[str, str]:
    """Returns environment variables that tune malloc in a new process.

    Args:
        environment: The environment of the new process so far.
        linux_choice: The file in which Linux says which programs get large
            pages.

    Returns:
        The variables to add: none without glibc, and none if a user has made
        settings of malloc, which win.
    """
    before = environment.get(_TUNABLES, "")
    if platform.libc_ver()[0] != "glibc" or _is_set(environment):
        return {}
    settings = [
        *_SETTINGS,
        # Threads share as many pools of memory as there are cores. glibc makes
        # eight for each core, and each keeps what its threads have freed.
        f"arena_max={max(2, usable_cores.usable_cores())}",
    ]
    if _gives_large_pages_on_request(linux_choice):
        settings.append(_LARGE_PAGES)
    ours = ":".join(f"{_MALLOC}{setting}" for setting in settings)
    return {_TUNABLES: f"{before}:{ours}" if before else ours}


def _is_set(environment: Mapping[str, str]) -> bool:
    """Returns whether the environment has settings of malloc."""
    return _MALLOC in environment.get(_TUNABLES, "") or any(
        name.startswith(_SINGLE_PREFIX) for name in environment
    )


def _gives_large_pages_on_request(linux_choice: pathlib.Path) -> bool:
    try:
        return _ON_REQUEST in linux_choice.read_text()
    except OSError:
        return False  # Not Linux, or one without large pages.
