"""Tests of the settings of malloc for tuned tasks."""

import os
import pathlib
import platform
import subprocess
import sys

import pytest

from tfps_plugin.cluster.machine import malloc_settings

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="Only glibc has the settings."
)


def _linux(folder: pathlib.Path, text: str) -> pathlib.Path:
    file = folder / "enabled"
    file.write_text(text)
    return file


@pytest.fixture
def on_request(tmp_path: pathlib.Path) -> pathlib.Path:
    """A Linux that gives large pages to programs that ask for them."""
    return _linux(tmp_path, "always [madvise] never\n")


def test_settings_of_a_user_that_are_not_about_malloc_stay(
    on_request: pathlib.Path,
) -> None:
    ours = malloc_settings.variables({}, on_request)["GLIBC_TUNABLES"]
    theirs = "glibc.rtld.optional_static_tls=1024"
    both = malloc_settings.variables({"GLIBC_TUNABLES": theirs}, on_request)
    assert both == {"GLIBC_TUNABLES": f"{theirs}:{ours}"}
    assert ours.startswith("glibc.malloc.")


@pytest.mark.parametrize(
    "environment",
    [
        {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"},
        {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"},
        {"MALLOC_ARENA_MAX": "2"},
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
    ],
)
def test_settings_of_malloc_by_a_user_win(
    environment: dict[str, str], on_request: pathlib.Path
) -> None:
    assert malloc_settings.variables(environment, on_request) == {}


def test_settings_are_made_once(on_request: pathlib.Path) -> None:
    made = malloc_settings.variables({}, on_request)
    assert malloc_settings.variables(made, on_request) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("always [madvise] never", True),
        ("[always] madvise never", False),
        ("", False),
    ],
)
def test_large_pages_are_asked_for_where_linux_waits_for_that(
    text: str, expected: bool, tmp_path: pathlib.Path
) -> None:
    made = malloc_settings.variables({}, _linux(tmp_path, text))
    assert ("hugetlb=1" in made["GLIBC_TUNABLES"]) == expected


def test_a_linux_without_large_pages(tmp_path: pathlib.Path) -> None:
    made = malloc_settings.variables({}, tmp_path / "none")
    assert "hugetlb" not in made["GLIBC_TUNABLES"]


def _output(program: str, environment: dict[str, str]) -> str:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "GLIBC_TUNABLES" and not name.startswith("MALLOC_")
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**kept, **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout


# Three blocks at a time: glibc keeps two for itself once one was freed.
_STEPS = """
import ctypes
import resource

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


def test_a_step_finds_memory_that_the_last_one_has_freed() -> None:
    plain = int(_output(_STEPS, {}))
    tuned = int(_output(_STEPS, malloc_settings.variables({})))
    assert tuned < plain / 2


_TABLES = """
import ctypes
import threading

c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p

def is_large(address):
    inside = False
    for line in open("/proc/self/smaps"):
        word = line.split()[0]
        if not word.endswith(":"):
            start, end = (int(each, 16) for each in word.split("-"))
            inside = start <= address < end
        elif inside and word == "VmFlags:":
            return "hg" in line.split()

def tables():
    addresses = [c.malloc(33 << 20) + (8 << 20) for _ in range(3)]
    print([is_large(address) for address in addresses])

thread = threading.Thread(target=tables)
thread.start()
thread.join()
"""


@pytest.mark.skipif(
    "hugetlb" not in str(malloc_settings.variables({})),
    reason="Linux gives large pages to all, or to none.",
)
def test_tables_of_a_tuned_process_have_large_pages() -> None:
    tuned = _output(_TABLES, malloc_settings.variables({}))
    assert tuned == "[True, True, True]\n"
    assert _output(_TABLES, {}) == "[False, False, False]\n"
