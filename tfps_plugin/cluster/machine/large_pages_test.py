"""Tests of memory in large pages."""

import os
import pathlib
import platform
import subprocess
import sys

import pytest

from tfps_plugin.cluster.machine import freed_memory
from tfps_plugin.cluster.machine import large_pages

_OURS = "glibc.malloc.hugetlb=1"
_IS_GLIBC = platform.libc_ver()[0] == "glibc"
pytestmark = pytest.mark.skipif(not _IS_GLIBC, reason="Only glibc has them.")


@pytest.fixture
def who_asks(tmp_path: pathlib.Path) -> pathlib.Path:
    """A Linux that gives large pages to programs that ask."""
    file = tmp_path / "enabled"
    file.write_text("always [madvise] never\n")
    return file


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ({}, _OURS),
        ({"GLIBC_TUNABLES": ""}, _OURS),
        (
            {"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=1024"},
            f"glibc.rtld.optional_static_tls=1024:{_OURS}",
        ),
        ({"GLIBC_TUNABLES": _OURS}, None),
        ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}, None),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, None),
        ({"MALLOC_ARENA_MAX": "2"}, None),
    ],
)
def test_a_new_process_asks_unless_a_user_has_said(
    before: dict[str, str], expected: str | None, who_asks: pathlib.Path
) -> None:
    added = large_pages.variables(before, who_asks)
    assert added == ({} if expected is None else {"GLIBC_TUNABLES": expected})


@pytest.mark.parametrize("text", ["[always] madvise never", "", None])
def test_nothing_is_asked_where_it_changes_nothing(
    text: str | None, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "enabled"
    if text is not None:
        file.write_text(text)
    assert large_pages.variables({}, file) == {}


def test_our_own_setting_is_no_user_s(who_asks: pathlib.Path) -> None:
    environment = large_pages.variables({}, who_asks)
    assert not large_pages.is_set_by_user(environment)
    assert freed_memory.keep(environment)


_TABLES = """
import ctypes
import os
import threading

from tfps_plugin.cluster.machine import freed_memory

assert freed_memory.keep(os.environ)
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
    addresses = [c.malloc(9 << 20) + (8 << 20) for _ in range(3)]
    print([is_large(address) for address in addresses])

thread = threading.Thread(target=tables)
thread.start()
thread.join()
"""


@pytest.mark.skipif(
    not large_pages.variables({}), reason="Linux gives them to all, or to none."
)
def test_tables_that_a_thread_makes_have_large_pages() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TABLES],
        env={**os.environ, **large_pages.variables({})},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "[True, True, True]\n"


_PROGRAM = """
import os
import sys

from tfps_plugin.cluster.machine import large_pages

# As if the setting never came through.
large_pages.variables = lambda environment: {"SOMETHING": "1"}
large_pages.begin_again()
print(os.getpid(), os.environ["SOMETHING"], sys.argv[1:], sys.flags.safe_path)
"""


def test_a_process_begins_again_once_as_it_was(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    process = subprocess.Popen(
        [sys.executable, "-P", str(program), "one", "two three"],
        stdout=subprocess.PIPE,
        text=True,
    )
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert output == f"{process.pid} 1 ['one', 'two three'] True\n"


def test_a_process_that_cannot_begin_again_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(large_pages, "variables", lambda _: {"SOMETHING": "1"})
    for executable in (str(tmp_path / "none"), "", None):
        monkeypatch.setattr(sys, "executable", executable)
        large_pages.begin_again()
