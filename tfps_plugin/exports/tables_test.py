"""Tests of exported tables: a dict in this process is the truth."""

import dataclasses
import errno
import hashlib
import json
import os
import pathlib
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tfps_plugin import errors
from tfps_plugin.exports import string_hash
from tfps_plugin.exports.export_folder import ExportFolder
from tfps_plugin.exports.export_folder import NewExport
from tfps_plugin.exports.first_rows import FirstRows
from tfps_plugin.exports.manifest import BY_ID
from tfps_plugin.exports.manifest import BY_ROW
from tfps_plugin.exports.manifest import Export
from tfps_plugin.exports.tables import Tables
from tfps_plugin.exports.unknown_ids import ALL_ZEROS
from tfps_plugin.exports.unknown_ids import INITIAL
from tfps_plugin.exports.unknown_ids import SHARED
from tfps_plugin.exports.unknown_ids import UnknownIds

_WIDTH = 2
_NINE = np.array([9])
_Rows = Mapping[int, float]


def _new(
    folder: ExportFolder,
    rows: _Rows,
    removed: set[int] = frozenset(),  # type: ignore[assignment]
    *,
    is_base: bool = False,
    kind: str = BY_ID,
    unknown: UnknownIds = ALL_ZEROS,
) -> tuple[NewExport, Export]:
    """Writes the files of an export of one table, and of its step."""
    before = folder.read()
    new = folder.begin()
    keys = np.array(list(rows), np.int64)
    values = np.repeat(
        np.array(list(rows.values()), np.float32)[:, None], _WIDTH, axis=1
    )
    table = new.add_table(
        "items",
        kind=kind,
        dtype=np.dtype(np.float32),
        width=_WIDTH,
        is_whole=is_base,
        num_rows=len(keys),
        blocks=[(keys, values)],
        removed=np.array(sorted(removed), np.int64),
        unknown=unknown,
    )
    number = 1 if before is None else before.newest.number + 1
    export = Export(
        number=number,
        identity=new.identity,
        follows=None if is_base or before is None else before.newest.identity,
        step=10 * number,
        time=0.0,
        tables=(table,),
        dense=new.add_dense(
            {
                "bias": np.array([number]),
                "unknown": np.full([1, _WIDTH], 100 + number),
            }
        ),
    )
    return new, export


def _export(
    folder: ExportFolder,
    rows: _Rows,
    removed: set[int] = frozenset(),  # type: ignore[assignment]
    **options: Any,
) -> Export:
    new, export = _new(folder, rows, removed, **options)
    folder.commit(new, folder.read(), export)
    return export


def _require_equal(tables: Tables, truth: _Rows) -> None:
    table = tables["items"]
    assert table.ids.tolist() == sorted(truth)
    assert table.rows[:, 1].tolist() == [truth[key] for key in sorted(truth)]
    assert len(table) == len(truth)
    asked = [*truth, 10**6]
    expected = [[truth.get(key, 0.0)] * _WIDTH for key in asked]
    np.testing.assert_array_equal(table.lookup(asked), expected)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> ExportFolder:
    return ExportFolder(tmp_path)


_KEYS = st.integers(-6, 6)
_CHANGES = st.tuples(
    st.dictionaries(_KEYS, st.floats(width=32, allow_nan=False)),
    st.sets(_KEYS),
    st.sampled_from(["changes", "base", "unread"]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_CHANGES, max_size=6), st.sampled_from([0, 1024]))
def test_a_reader_has_the_rows_of_each_export(
    steps: list[tuple[dict[int, float], set[int], str]], merge_rows: int
) -> None:
    with (
        tempfile.TemporaryDirectory() as path,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("tfps_plugin.exports.table._MERGE_ROWS", merge_rows)
        folder = ExportFolder(pathlib.Path(path))
        truth: dict[int, float] = {1: 1.0, -(2**63): 2.0, 3: 3.0}
        _export(folder, truth, is_base=True)
        tables = Tables(path)
        _require_equal(tables, truth)
        for rows, removed, how in steps:
            gone = (removed & set(truth)) - set(rows)
            truth = {k: v for k, v in truth.items() if k not in gone} | rows
            if how == "base":
                export = _export(folder, truth, is_base=True)
            else:
                export = _export(folder, rows, gone)
            if how != "unread":
                assert tables.refresh() == export.number
                assert tables.refresh() is None
                _require_equal(tables, truth)
        tables.refresh()
        _require_equal(tables, truth)
        _require_equal(Tables(path), truth)


def test_what_else_is_known_of_an_export(folder: ExportFolder) -> None:
    _export(folder, {1: 1.0}, is_base=True)
    tables = Tables(folder.path)
    before = tables.snapshot()
    _export(folder, {1: 5.0})
    tables.refresh()
    assert (tables.version, tables.step, list(tables)) == (2, 20, ["items"])
    assert tables.age > 0
    assert tables.dense["bias"].tolist() == [2]
    # Whoever has a snapshot keeps it.
    assert before.tables["items"].lookup([1]).tolist() == [[1.0, 1.0]]


def test_an_export_is_there_once_its_manifest_is(folder: ExportFolder) -> None:
    _export(folder, {1: 1.0}, is_base=True)
    tables = Tables(folder.path)
    # A process that dies before its files are complete, and one that dies
    # before it has replaced the manifest.
    new, export = _new(folder, {1: 7.0})
    new.path.rename(folder.path / export.folder)
    (folder.path / ".writing-other").mkdir()
    assert tables.refresh() is None
    _require_equal(tables, {1: 1.0})
    _export(folder, {2: 2.0})
    assert tables.refresh() == 2
    _require_equal(tables, {1: 1.0, 2: 2.0})
    # What they have left is gone.
    assert len(list(folder.path.iterdir())) == 3


def _names(folder: ExportFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir())


@pytest.mark.parametrize("is_first", [True, False])
def test_a_commit_that_fails_leaves_nothing(
    folder: ExportFolder, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    kept = []
    if not is_first:
        _export(folder, {1: 1.0}, is_base=True)
        kept = _names(folder)
    before = folder.read()
    new, export = _new(folder, {1: 2.0}, is_base=is_first)
    odd = dataclasses.replace(export, step=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="JSON"):
        folder.commit(new, before, odd)
    new.discard()
    assert _names(folder) == kept
    # No space for the manifest; and no way to replace it.
    for name in ("fsync", "replace"):
        new, export = _new(folder, {1: 2.0}, is_base=is_first)

        def fail(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, "no space")

        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match="no space"):
                folder.commit(new, before, export)
        assert _names(folder) == kept
    _export(folder, {1: 3.0}, is_base=is_first)
    _require_equal(Tables(folder.path), {1: 3.0})


def test_an_export_that_is_begun_removes_what_others_have_left(
    folder: ExportFolder,
) -> None:
    export = _export(folder, {1: 1.0}, is_base=True)
    # As of a program that died between the renames of a commit.
    new, other = _new(folder, {1: 2.0})
    new.path.rename(folder.path / other.folder)
    (folder.path / ".manifest.json.new").write_text("{")
    (folder.path / "of the user").write_text("")
    new = folder.begin()
    assert _names(folder) == sorted(
        [new.path.name, export.folder, "manifest.json", "of the user"]
    )


def test_folders_are_kept_while_no_manifest_is_seen(
    folder: ExportFolder,
) -> None:
    _export(folder, {1: 1.0}, is_base=True)
    manifest = folder.path / "manifest.json"
    # As a network file system may hide it for some seconds.
    hidden = manifest.rename(folder.path / "hidden")
    folder.begin().discard()
    hidden.rename(manifest)
    _require_equal(Tables(folder.path), {1: 1.0})


@pytest.mark.parametrize("end", ["keys.npy", "rows.npy", "dense.npz"])
def test_a_damaged_file_is_refused_by_name(
    folder: ExportFolder, end: str
) -> None:
    _export(folder, {1: 1.0}, is_base=True)
    tables = Tables(folder.path)
    export = _export(folder, {1: 2.0, 2: 2.0})
    (path,) = (folder.path / export.folder).glob(f"*{end}")
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        with pytest.raises(errors.ExportUnreadableError, match=path.name):
            tables.refresh()
        _require_equal(tables, {1: 1.0})
        assert tables.version == 1
    path.write_bytes(whole)
    assert tables.refresh() == 2


def test_a_damaged_manifest_is_refused(folder: ExportFolder) -> None:
    _export(folder, {1: 1.0}, is_base=True)
    path = folder.path / "manifest.json"
    path.write_text(path.read_text().replace('"step": 10', '"step": 11'))
    with pytest.raises(errors.ExportUnreadableError, match="checksum"):
        Tables(folder.path)


def test_a_file_that_is_gone_is_an_error(folder: ExportFolder) -> None:
    export = _export(folder, {1: 1.0}, is_base=True)
    (folder.path / export.folder / "table-0000.keys.npy").unlink()
    with pytest.raises(FileNotFoundError, match="keys"):
        Tables(folder.path)


def test_nothing_exported_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tfps\.export_changes"):
        Tables(tmp_path)


def test_a_second_exporter_is_refused(folder: ExportFolder) -> None:
    _export(folder, {1: 1.0}, is_base=True)
    before = folder.read()
    new, export = _new(folder, {1: 2.0})
    _export(folder, {1: 3.0})
    with pytest.raises(errors.ExportUnreadableError, match="Another program"):
        folder.commit(new, before, export)
    _require_equal(Tables(folder.path), {1: 3.0})


def test_a_table_by_row(folder: ExportFolder) -> None:
    _export(folder, {0: 0.5, 1: 1.0, 2: 2.0}, is_base=True, kind=BY_ROW)
    table = Tables(folder.path)["items"]
    assert table.lookup(np.array([[2, 0]], "uint8")).shape == (1, 2, _WIDTH)
    assert table.lookup([]).shape == (0, _WIDTH)
    with pytest.raises(TypeError, match="numbers of rows"):
        table.lookup(["a"])
    # As in the layer, from the end.
    np.testing.assert_array_equal(
        table.lookup([-1, -3, 1]), table.lookup([2, 0, 1])
    )
    with pytest.raises(KeyError, match="1 of 2 ids"):
        table.lookup([-4, 2], "error")


def test_strings_are_looked_up_as_they_are(folder: ExportFolder) -> None:
    strings: list[str | bytes] = [b"ab", b"ab\0", "ab\0\0", b"\0"]
    (first, *others) = string_hash.ids_of(strings).tolist()
    _export(folder, {first: 0.5, others[0]: 1.0, others[1]: 2.0}, is_base=True)
    table = Tables(folder.path)["items"]
    expected = table.lookup([first, *others])
    np.testing.assert_array_equal(table.lookup(strings), expected)
    np.testing.assert_array_equal(
        table.lookup([[each] for each in strings])[:, 0], expected
    )
    with pytest.raises(TypeError, match="all integers or all strings"):
        table.lookup(["a", 3])


def test_ids_without_a_row(folder: ExportFolder) -> None:
    _export(folder, {1: 1.0}, is_base=True)
    table = Tables(folder.path)["items"]
    assert table.lookup([1, 9], [7.0, 8.0]).tolist() == [[1, 1], [7, 8]]
    with pytest.raises(KeyError, match="9"):
        table.lookup([1, 9], unknown="error")
    with pytest.raises(ValueError, match="initial"):
        table.lookup([1], unknown="initial")
    with pytest.raises(TypeError, match="float64"):
        table.lookup([0.5])
    with pytest.raises(KeyError, match="users"):
        _ = Tables(folder.path)["users"]


def test_unsigned_ids_are_those_with_the_same_bits(
    folder: ExportFolder,
) -> None:
    _export(folder, {-1: 1.0, -(2**63): 2.0, 5: 3.0}, is_base=True)
    ids = np.array([2**64 - 1, 2**63, 5], np.uint64)
    found = Tables(folder.path)["items"].lookup(ids, "error")
    assert found[:, 0].tolist() == [1.0, 2.0, 3.0]


def test_a_shared_row_is_that_of_the_export(folder: ExportFolder) -> None:
    shared = UnknownIds(SHARED, shared="unknown")
    _export(folder, {1: 1.0}, is_base=True, unknown=shared)
    tables = Tables(folder.path)
    before = tables.snapshot()
    # The table has no changes; its shared row has.
    _export(folder, {}, unknown=shared)
    tables.refresh()
    assert tables["items"].unknown == "shared"
    assert tables["items"].lookup([9, 1])[:, 0].tolist() == [102.0, 1.0]
    assert tables["items"].lookup([9], "zeros").tolist() == [[0.0, 0.0]]
    assert before.tables["items"].lookup([9]).tolist() == [[101.0, 101.0]]


def _change_manifest(folder: ExportFolder, change: Any) -> None:
    path = folder.path / "manifest.json"
    contents = json.loads(path.read_text())["manifest"]
    change(contents)
    text = json.dumps(contents, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps({"sha256": checksum, "manifest": contents}))


def test_exports_of_the_first_format_have_zeros_for_unknown_ids(
    folder: ExportFolder,
) -> None:
    def as_before(contents: dict[str, Any]) -> None:
        contents["format"] = 1
        for export in contents["exports"]:
            for table in export["tables"]:
                del table["unknown"]

    _export(folder, {1: 1.0}, is_base=True)
    _export(folder, {2: 2.0})
    _change_manifest(folder, as_before)
    tables = Tables(folder.path)
    _require_equal(tables, {1: 1.0, 2: 2.0})
    assert tables["items"].unknown == "zeros"
    # A program of this release goes on in the same folder.
    _export(folder, {3: 3.0}, is_base=True)
    tables.refresh()
    _require_equal(tables, {3: 3.0})


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (["policy"], "'items'.* policy 'nearest'.* knows zeros, initial"),
        (["first", "distribution"], "distribution 'nearest'.* knows constant"),
        (["first", "dtype"], "dtype 'nearest'.* knows bfloat16"),
    ],
    ids=str,
)
def test_a_rule_of_a_later_release_is_refused_by_name(
    folder: ExportFolder, place: list[str], message: str
) -> None:
    first = FirstRows("uniform", (0.0, 1.0), 3, "float32")
    rule = UnknownIds(INITIAL, first)
    _export(folder, {1: 1.0}, is_base=True, unknown=rule)
    tables = Tables(folder.path)
    assert tables["items"].lookup([9]).tolist() == [[*first.of(_NINE, 2)[0]]]
    _export(folder, {2: 2.0}, unknown=rule)

    def change(contents: dict[str, Any]) -> None:
        fields = contents["exports"][-1]["tables"][0]["unknown"]
        *outer, last = place
        for name in outer:
            fields = fields[name]
        fields[last] = "nearest"

    _change_manifest(folder, change)
    with pytest.raises(errors.ExportUnreadableError, match=message):
        tables.refresh()
    assert tables.version == 1


def test_a_later_format_is_refused(folder: ExportFolder) -> None:
    _export(folder, {1: 1.0}, is_base=True)
    _change_manifest(folder, lambda contents: contents.update(format=3))
    with pytest.raises(errors.ExportUnreadableError, match="format is 3"):
        Tables(folder.path)


def test_a_thread_sees_one_export_at_a_time(folder: ExportFolder) -> None:
    def of(value: int) -> _Rows:
        return dict.fromkeys(range(50), float(value))

    _export(folder, of(0), is_base=True)
    tables = Tables(folder.path)
    mixed: list[np.ndarray] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            seen = np.unique(tables["items"].lookup(range(50)))
            if len(seen) != 1:
                mixed.append(seen)

    thread = threading.Thread(target=look)
    thread.start()
    for value in range(1, 20):
        _export(folder, of(value))
        tables.refresh()
    is_over.set()
    thread.join(30)
    assert not thread.is_alive()
    assert not mixed
