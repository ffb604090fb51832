"""Fixtures of every test: a quiet environment, and a check for leftovers.

integration_tests/conftest.py imports the fixtures from here, because the root
of the repository is kept free of Python files.
"""

import collections
import contextlib
import datetime
import os
import pathlib
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator

import hypothesis
import pytest

# The first example of a property traces TensorFlow functions, the others do
# not: a deadline for each would be about that.
hypothesis.settings.register_profile("tfps", deadline=None, max_examples=50)
hypothesis.settings.load_profile("tfps")

# Before anything imports TensorFlow: that reads these once. Tests run on the
# CPU unless the caller names a GPU; a cluster that the caller is part of is
# none of ours.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.pop("TF_CONFIG", None)

# Every process that descends from this one has it in its environment, and
# keeps it when its parents die before it: nothing can hide.
_MARK = "TFPS_TEST_RUN"
if "PYTEST_XDIST_WORKER" in os.environ:
    # Runs side by side are each other's business as little as any others.
    os.environ[_MARK] = uuid.uuid4().hex
os.environ.setdefault(_MARK, uuid.uuid4().hex)

# Somebody else's; not worth looking at again after every test.
_OTHERS = frozenset(name for name in os.listdir("/proc") if name.isdecimal())

# How long something that is on its way out may take to be gone.
_PATIENCE_SECONDS = 10.0
_INTERVAL_SECONDS = 0.02

# Threads that outlive a test by design, by the start of their name.
_LASTING_THREADS = (
    # Other people's pools, made at first use and kept for the process.
    "asyncio_",
    "pytest_timeout",
    # Threads of TensorFlow's that have once run Python.
    "Dummy-",
    # Ends with the connection, which tests share; monitoring_test sees to it.
    "tfps-state-server",
)

# Files that outlive a test by design, by the start of their name.
_LASTING_FILES = (
    # TensorFlow's AutoGraph keeps the code it generates until the exit.
    "__autograph_generated_file",
    # The socket of the same server.
    "tfpsjob-",
)


def _threads() -> Iterator[str]:
    for thread in threading.enumerate():
        if not thread.name.startswith(_LASTING_THREADS):
            yield f"thread {thread.name!r}"


def _threads_to_come() -> Iterator[str]:
    """Those that somebody has made and not started."""
    for thread in list(threading._dangling):  # type: ignore[attr-defined]
        if thread.ident is None:
            yield f"thread {thread.name!r}"


def _processes() -> Iterator[str]:
    """Living descendants of this test run."""
    mark = f"{_MARK}={os.environ[_MARK]}".encode()
    for name in os.listdir("/proc"):
        if not name.isdecimal() or name in _OTHERS:
            continue
        folder = pathlib.Path("/proc", name)
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().split(b"\0")
                yield f"process {b' '.join(command).decode()}"
        except OSError:
            continue  # Somebody else's, or gone while we looked.


def _files(folder: pathlib.Path) -> Iterator[str]:
    for path in folder.iterdir():
        if not path.name.startswith(_LASTING_FILES):
            yield f"temporary file {path}"


def _everything(folder: pathlib.Path) -> collections.Counter[str]:
    """Counts threads, processes and files by kind.

    Counting lets a test restart a task of a shared cluster: it leaves another
    process, but as many of its kind.
    """
    return collections.Counter(
        [*_threads(), *_processes(), *_files(folder)],
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options that decide which cases of large matrices run."""
    group = parser.getgroup("samples of large test matrices")
    # Also called by the other conftest.py that pytest may begin with.
    with contextlib.suppress(ValueError):
        group.addoption(
            "--all",
            action="store_true",
            help="run every case of every matrix, not a sample of them",
        )
        group.addoption(
            "--sample-seed",
            type=int,
            # The date's: every day has another sample.
            default=datetime.datetime.now(datetime.UTC).date().toordinal(),
            help="the seed of the samples",
        )


@pytest.fixture(scope="session", autouse=True)
def scratch_folder(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[pathlib.Path]:
    """Folder of temporary files that no other program writes to."""
    folder = tmp_path_factory.mktemp("scratch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield folder


@pytest.fixture(autouse=True)
def nothing_left_behind(scratch_folder: pathlib.Path) -> Iterator[None]:
    """Fails a test that leaves a thread, a process or a temporary file.

    What fixtures of a wider scope have started before the test is not its
    business, and is checked by nobody: they clean up with the same care.
    """
    before = _everything(scratch_folder)
    # A coordinator of a wider scope may have started these by the end.
    before.update(_threads_to_come())
    yield
    deadline = time.monotonic() + _PATIENCE_SECONDS
    never = threading.Event()
    while left := _everything(scratch_folder) - before:
        if time.monotonic() > deadline:
            pytest.fail("The test left behind:\n  " + "\n  ".join(left))
        never.wait(_INTERVAL_SECONDS)
