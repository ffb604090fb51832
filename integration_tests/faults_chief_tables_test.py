"""Tests of a chief that dies while tables make, evict and export rows."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import train_and_export as program

import tfps_plugin as tfps
from tfps_plugin import serving

# Each starts a cluster and two programs.
pytestmark = pytest.mark.sample(cases=1, group="faults_chief_tables")

_PROGRAM_SECONDS = 200.0
_PAUSE_SECONDS = 0.02
# Rows of so many of the last steps are never evicted.
_KEPT_STEPS = 20


@pytest.fixture
def cluster() -> Iterator[tfps.LocalCluster]:
    """Yields a cluster for one test: it ends with the second chief's job."""
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        yield cluster


class _Reader:
    """Follows an export folder, as long as the context lasts.

    Attributes:
        found: Step, and ids and rows of each table, of each export that it
            has seen.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.found: list[
            tuple[int, dict[str, tuple[np.ndarray, np.ndarray]]]
        ] = []
        self._folder = folder
        self._tables: serving.Tables | None = None
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> "_Reader":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        self._thread.join(_PROGRAM_SECONDS)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def _follow(self) -> None:
        try:
            while not self._is_over.wait(_PAUSE_SECONDS):
                self._look()
            self._look()
        except BaseException as error:
            self._error = error

    def _look(self) -> None:
        if not (self._folder / "manifest.json").exists():
            return
        # One that begins now, and one that has followed.
        begun = serving.Tables(self._folder)
        if self._tables is None:
            self._tables = begun
        elif self._tables.refresh() is None:
            return
        snapshot = self._tables.snapshot()
        tables = {
            name: (table.ids, table.rows)
            for name, table in snapshot.tables.items()
        }
        self.found.append((snapshot.export.step, tables))


def _run(
    cluster: tfps.LocalCluster, folder: pathlib.Path, *options: Any
) -> int:
    """Runs the program; returns how it ended."""
    addresses = cluster.cluster_resolver.cluster_spec().as_dict()
    jobs = {job: addresses[job] for job in ("worker", "ps")}
    ended = subprocess.run(
        [
            *(sys.executable, program.__file__, str(folder)),
            *(json.dumps(jobs), *map(str, options)),
        ],
        env={
            **os.environ,
            "PYTHONPATH": str(pathlib.Path(__file__).parent.parent),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_PROGRAM_SECONDS,
    )
    assert ended.returncode in (0, -signal.SIGKILL), ended.stdout[-20_000:]
    return ended.returncode


class _Truth:
    """Row and slot of each id after each step, of a program without failures.

    All numbers of a row are alike. An id that is evicted does not come back.
    """

    def __init__(self, kind: str) -> None:
        row, slot = np.float32(0), np.float32(program.FIRST_SLOT)
        now: dict[int, tuple[np.float32, np.float32]] = {}
        self._after = [dict(now)]
        for ids in program.ids_of(kind).reshape(-1, program.BATCH * 3):
            met, counts = np.unique(ids, return_counts=True)
            for each, count in zip(met.tolist(), counts, strict=True):
                before_row, before_slot = now.get(each, (row, slot))
                gradient = np.float32(count / program.BATCH)
                after = before_slot + gradient * gradient
                change = np.float32(program.LEARNING_RATE) * gradient
                change /= np.sqrt(after + np.float32(1e-7))
                now[each] = before_row + change, after
            self._after.append(dict(now))

    def ids(self, step: int) -> set[int]:
        """Returns the ids that steps have met."""
        return set(self._after[step])

    def require_equal(
        self, step: int, ids: Any, rows: Any, slots: Any = None
    ) -> None:
        """Checks rows, and slots if there are some, after a step."""
        assert len(set(ids.tolist())) == len(ids)
        expected = np.array([self._after[step][one] for one in ids.tolist()])
        expected = expected.reshape(-1, 2)
        for found, number in ((rows, 0), (slots, 1)):
            if found is not None:
                np.testing.assert_allclose(
                    found,
                    np.tile(expected[:, [number]], program.WIDTH),
                    rtol=1e-5,
                )


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="between two steps"),
        pytest.param(("--die-at-sync", 2), id="while rows are written"),
        pytest.param(("--die-at-sync", 6), id="while the manifest is written"),
    ],
)
@pytest.mark.parametrize("kind", program.STEPS)
def test_a_new_chief_goes_on_to_the_rows_of_an_undisturbed_one(
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    kind: str,
    options: tuple[Any, ...],
) -> None:
    _require_undisturbed(cluster, tmp_path, kind, options, program.ALONE)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="between two steps"),
        pytest.param(("--die-at-sync", 2), id="while rows are written"),
    ],
)
@pytest.mark.parametrize("kind", program.STEPS)
def test_tables_that_are_stacked_go_on_as_well(
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    kind: str,
    options: tuple[Any, ...],
) -> None:
    _require_undisturbed(
        cluster, tmp_path, kind, ("--stacked", *options), program.STACKED
    )


def _require_undisturbed(
    cluster: tfps.LocalCluster,
    folder: pathlib.Path,
    kind: str,
    options: tuple[Any, ...],
    names: Iterable[str],
) -> None:
    """Kills a program, runs it again, and compares its tables."""
    num_steps = program.STEPS[kind]
    # When rows have been evicted for some time.
    dies_after = num_steps * 2 // 3
    results = {name: folder / f"{name.split('/')[-1]}.npz" for name in names}
    stacked = [each for each in options if each == "--stacked"]
    with _Reader(folder / "exported") as reader:
        ended = _run(cluster, folder, kind, "--die-after", dies_after, *options)
        assert ended == -signal.SIGKILL
        assert not any(path.exists() for path in results.values())
        num_before = serving.Tables(folder / "exported").version
        assert _run(cluster, folder, kind, *stacked) == 0
    # The reader has seen whole moments, and now has what the model has.
    tables = serving.Tables(folder / "exported")
    assert tables.version > num_before > 1
    assert len(reader.found) > 2
    assert reader.found[-1][0] == num_steps
    truth = _Truth(kind)
    for name, path in results.items():
        with np.load(path) as result:
            ids, rows = result["ids"], result["rows"]
            # It has gone on from a backup.
            assert dies_after - 30 <= result["began_at"] < num_steps
            assert result["iterations"] == num_steps
            assert (result["evicted"] > 0) == (kind == "evicts")
            truth.require_equal(num_steps, ids, rows, result["slots"])
        met = truth.ids(num_steps)
        if kind == "evicts":
            last = program.ids_of(kind)[-_KEPT_STEPS * program.BATCH :]
            assert len(ids) < len(met)
            met = set(last.reshape(-1).tolist())
        assert met <= set(ids.tolist())
        assert tables[name].ids.tolist() == sorted(ids)
        np.testing.assert_array_equal(tables[name].lookup(ids), rows)
        for step, found in reader.found:
            its_ids, its_rows = found[name]
            truth.require_equal(step, its_ids, its_rows)
            if kind == "grows":
                assert set(its_ids.tolist()) == truth.ids(step)
        its_ids, _ = reader.found[-1][1][name]
        np.testing.assert_array_equal(np.sort(its_ids), np.sort(ids))
