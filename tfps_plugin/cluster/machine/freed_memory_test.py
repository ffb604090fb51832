"""Tests of memory that is kept for the next step."""

import subprocess
import sys

import pytest

from tfps_plugin.cluster.machine import freed_memory

# Three blocks at a time: when the first has been freed, glibc keeps two.
_PROGRAM = """
import ctypes
import resource
import sys

from tfps_plugin.cluster.machine import freed_memory

if sys.argv[1] == "keep":
    assert freed_memory.keep({})
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
c.free.argtypes = [ctypes.c_void_p]

def step():
    blocks = [c.malloc(20 << 20) for _ in range(3)]
    for block in blocks:
        ctypes.memset(block, 1, 20 << 20)
    for block in blocks:
        c.free(block)

for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _page_faults(way: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, way],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return int(done.stdout)


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Only glibc has it."
)
def test_a_step_finds_the_memory_of_the_last_one() -> None:
    assert _page_faults("keep") < 100
    # As it is without.
    assert _page_faults("as it is") > 1000


@pytest.mark.parametrize(
    "environment",
    [
        {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"},
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
    ],
)
def test_settings_of_a_user_are_left(environment: dict[str, str]) -> None:
    assert not freed_memory.keep(environment)
