"""Tests of memory in large pages."""

import pathlib
import platform
import subprocess
import sys

import pytest

from tfps_plugin.cluster import freed_memory
from tfps_plugin.cluster import large_pages

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


_PROGRAM = """
import os
import sys

from tfps_plugin.cluster import large_pages

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
