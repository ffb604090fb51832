"""Memory of TensorFlow's tensors, as this process allocates it."""

import ctypes
import os
import platform
from collections.abc import MutableMapping

from tfps_plugin.cluster.mapped_memory.page_calls import PAGE_BYTES

# With oneDNN, TensorFlow cuts the memory of large tensors from a pool, unless
# this variable is true. It is read when the first tensor is made.
WITHOUT_POOL = "TF_ONEDNN_USE_SYSTEM_ALLOCATOR"

_OTHER_ALLOCATORS = ("libjemalloc", "libtcmalloc", "libmimalloc")
_SIZE_BYTES = ctypes.sizeof(ctypes.c_size_t)
# The last bits of a size have flags, of which malloc sets this one alone for
# memory that it has mapped.
_FLAGS = 7
_IS_MAPPED = 2
# For the header, to align the memory, and to fill its last page.
_MOST_BESIDE = 2 * PAGE_BYTES


def take_from_c_library(environment: MutableMapping[str, str]) -> None:
    """Has TensorFlow take the memory of each tensor from the C library.

    Only before it makes the first one.

    Args:
        environment: The environment of this process. A choice of the user
            stays.
    """
    environment.setdefault(WITHOUT_POOL, "1")


def is_mapping_of_its_own(address: int, num_bytes: int) -> bool:
    """Returns whether the C library has mapped memory for one tensor.

    Such memory comes from the operating system and goes back to it as a whole,
    whatever is mapped there. All that is larger than 32 MB is of this kind
    (`DEFAULT_MMAP_THRESHOLD_MAX` in `man mallopt`), and some of the rest,
    unless the C library has as much free memory that it has kept, or TensorFlow
    has a pool.

    Args:
        address: First byte of the tensor.
        num_bytes: Its size.

    Raises:
        OSError: If memory is not allocated by GNU's C library.
    """
    with open("/proc/self/maps") as maps:
        for line in maps:
            library = os.path.basename(line.rstrip())
            if library.startswith(_OTHER_ALLOCATORS):
                raise OSError(f"Memory is allocated by {library}.")
    if platform.libc_ver()[0] != "glibc":
        raise OSError("The C library is not GNU's.")
    # What malloc writes before memory that it has mapped: the bytes between the
    # mapping and the header, and those from the header on. In a pool, it is the
    # end of another tensor, or describes the whole pool.
    before, size = (
        ctypes.c_size_t.from_address(address - place * _SIZE_BYTES).value
        for place in (2, 1)
    )
    if size & _FLAGS != _IS_MAPPED:
        return False
    size -= _IS_MAPPED
    begin = address - 2 * _SIZE_BYTES - before
    return (
        begin % PAGE_BYTES == 0
        and (before + size) % PAGE_BYTES == 0
        and 0 <= before + size - num_bytes <= _MOST_BESIDE
    )
