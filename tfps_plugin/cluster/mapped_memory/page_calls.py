"""Calls of Linux for memory that a file backs.

None of them changes what memory contains, even if the range belongs to somebody
else by now: variables may be freed at any time.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable

import numpy as np

PAGE_BYTES = mmap.PAGESIZE


def _c_library() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.mincore.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_void_p,
    ]
    # The C library has it since 2.36.
    if hasattr(library, "process_madvise"):
        library.process_madvise.restype = ctypes.c_ssize_t
        library.process_madvise.argtypes = [
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_uint,
        ]
    return library


_libc = _c_library()

# Flags of <sys/mman.h> and <fcntl.h> that Python does not have.
_MAP_FIXED = 0x10
_MADV_PAGEOUT = 21
_SYNC_BEGIN = 2
_SYNC_BEFORE = 1
# IOV_MAX of <limits.h>.
_MOST_RANGES = 1024


def map_over(address: int, num_bytes: int, descriptor: int) -> None:
    """Puts a file in the place of memory, whose contents are lost.

    Args:
        address: First byte, at the start of a page.
        num_bytes: Size of the range, in whole pages.
        descriptor: Descriptor of the file, which has as many bytes.

    Raises:
        OSError: If the operating system refuses it.
    """
    mapped = _libc.mmap(
        address,
        num_bytes,
        mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_SHARED | _MAP_FIXED,
        descriptor,
        0,
    )
    if mapped != address:
        _raise()


def read_ahead(ranges_R2: np.ndarray) -> None:
    """Begins to read pages, and waits for nothing.

    Args:
        ranges_R2: Address and size of each range, uint64, shape `(R, 2)`.
    """
    _advise(ranges_R2, mmap.MADV_WILLNEED)


def without_neighbors(address: int, num_bytes: int) -> None:
    """Asks that a page is read without those that follow it."""
    _libc.madvise(address, num_bytes, mmap.MADV_RANDOM)


def page_out(ranges_R2: np.ndarray) -> None:
    """Gives pages back; those that have changed stay in the file's cache.

    Args:
        ranges_R2: As for `read_ahead`.
    """
    _advise(ranges_R2, _MADV_PAGEOUT)


def _advise(ranges_R2: np.ndarray, advice: int) -> None:
    """Gives advice for many ranges in few calls, if the system can do that.

    The disk then gets its orders together, which takes half the processor time.
    """
    done = 0
    if len(ranges_R2) and hasattr(_libc, "process_madvise"):
        done = _advise_together(ranges_R2, advice)
    for address, num_bytes in ranges_R2[done:].tolist():
        _libc.madvise(address, num_bytes, advice)


def _advise_together(ranges_R2: np.ndarray, advice: int) -> int:
    """Returns the number of ranges that the system has taken."""
    try:
        process = os.pidfd_open(os.getpid())
    except OSError:
        # An older kernel, or a container that forbids it.
        return 0
    try:
        for start in range(0, len(ranges_R2), _MOST_RANGES):
            part_R2 = np.ascontiguousarray(
                ranges_R2[start : start + _MOST_RANGES]
            )
            num_bytes = _libc.process_madvise(
                process, part_R2.ctypes.data, len(part_R2), advice, 0
            )
            if num_bytes != int(part_R2[:, 1].sum()):
                return start
    finally:
        os.close(process)
    return len(ranges_R2)


def read_to(descriptor: int, place: int, address: int, num_bytes: int) -> None:
    """Reads a part of a file to memory.

    Args:
        descriptor: Descriptor of the file.
        place: Its first byte in the file.
        address: Its first byte in memory.
        num_bytes: Its size.

    Raises:
        OSError: If the file cannot be read, or is shorter.
    """
    done = 0
    while done < num_bytes:
        target = (ctypes.c_char * (num_bytes - done)).from_address(
            address + done
        )
        num_read = os.preadv(descriptor, [target], place + done)
        if num_read == 0:
            raise OSError(f"A file ends before byte {place + num_bytes}.")
        done += num_read


def begin_writes(descriptor: int, runs: Iterable[tuple[int, int]]) -> None:
    """Begins to write what has changed, and hardly waits.

    Args:
        descriptor: Descriptor of the file.
        runs: First byte and size of each range of pages.
    """
    _sync(descriptor, runs, _SYNC_BEGIN)


def drop(descriptor: int, runs: Iterable[tuple[int, int]]) -> None:
    """Drops pages of a file from its cache that nobody has mapped.

    Of those that have changed it begins the writing only. They are dropped by a
    second call, once they are on the disk.

    Args:
        descriptor: Descriptor of the file.
        runs: First byte and size of each range of pages.
    """
    for first, num_bytes in runs:
        os.posix_fadvise(descriptor, first, num_bytes, os.POSIX_FADV_DONTNEED)


def wait_for_writes(descriptor: int, runs: Iterable[tuple[int, int]]) -> None:
    """Waits until the writes of pages that have begun are done.

    Args:
        descriptor: Descriptor of the file.
        runs: First byte and size of each range of pages.
    """
    _sync(descriptor, runs, _SYNC_BEFORE)


def _sync(descriptor: int, runs: Iterable[tuple[int, int]], flags: int) -> None:
    for first, num_bytes in runs:
        _libc.sync_file_range(
            descriptor, ctypes.c_int64(first), ctypes.c_int64(num_bytes), flags
        )


def are_resident(address: int, num_bytes: int) -> np.ndarray:
    """Returns whether each page is in memory.

    Raises:
        OSError: If there is no memory at the address.
    """
    flags = np.zeros(num_bytes // PAGE_BYTES, np.uint8)
    if _libc.mincore(address, num_bytes, flags.ctypes.data):
        _raise()
    return (flags & 1).astype(bool)


def inodes_in_use() -> dict[int, int]:
    """Returns the inode of the file that is mapped at each address."""
    found = {}
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if fields[4] != "0":
                found[int(fields[0].partition("-")[0], 16)] = int(fields[4])
    return found


def is_in_memory(folder: str) -> bool:
    """Returns whether files of a folder are in memory, and on no disk."""
    device = os.stat(folder).st_dev
    numbers = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            fields, _, of_type = line.partition(" - ")
            if fields.split()[2] == numbers:
                return of_type.split()[0] in ("tmpfs", "ramfs")
    return False


def _raise() -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
