import contextlib
import pathlib
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.inputs.dataset_creator import DatasetCreator
from tfps_plugin.inputs.listed_splits import ListedSplits

_CONTEXT = DispatchContext(
    0, 0, 1, "/job:localhost/replica:0/task:0/device:CPU:0"
)


def _files(folder: pathlib.Path, header: str = "x,y") -> list[str]:
    files = []
    for number in range(3):
        files.append(str(folder / f"{number}.csv"))
        pathlib.Path(files[-1]).write_text(f"{header}\n{number},1.5\n")
    return files


def _csv(file: Any) -> tf.data.Dataset:
    """As in one process: it opens the file to see its columns."""
    return tf.data.experimental.make_csv_dataset(
        file, 2, label_name="y", num_epochs=1, shuffle=False
    )


def _listed(dataset_fn: Any, splits: Any) -> ListedSplits:
    creator = DatasetCreator(dataset_fn, splits=splits)
    return ListedSplits(creator, contextlib.nullcontext)


def _read(splits: ListedSplits, number: int) -> list[int]:
    iterator, is_infinite = splits.build(_CONTEXT, number)
    assert not is_infinite
    return [int(x) for features, _ in iterator for x in features["x"]]


def test_a_function_that_needs_strings_gets_them(
    tmp_path: pathlib.Path,
) -> None:
    files = _files(tmp_path)
    splits = _listed(_csv, lambda epoch: files[epoch:])
    assert list(splits.element_spec[0]) == ["x"]
    assert [splits.begin_pass().num_splits for _ in range(2)] == [3, 2]
    assert [_read(splits, number) for number in range(2)] == [[1], [2]]


def test_a_function_of_tensors_is_traced_once(tmp_path: pathlib.Path) -> None:
    given = []

    def dataset_fn(file: Any) -> tf.data.Dataset:
        given.append(file)
        return tf.data.TextLineDataset(file).batch(2)

    splits = _listed(dataset_fn, _files(tmp_path))
    splits.begin_pass()
    assert [type(file).__name__ for file in given] == ["SymbolicTensor"]
    (lines,) = splits.build(_CONTEXT, 2)[0]
    assert lines.numpy().tolist() == [b"x,y", b"2,1.5"]


def test_splits_with_other_columns_are_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "other").mkdir()
    files = [*_files(tmp_path), *_files(tmp_path / "other", "z,y")]
    with pytest.raises(errors.InputError, match=r"split 3.*other/0\.csv"):
        _listed(_csv, files)


def test_what_the_function_raises_is_not_hidden(tmp_path: pathlib.Path) -> None:
    def dataset_fn(file: Any) -> tf.data.Dataset:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        _listed(dataset_fn, _files(tmp_path))


def test_the_chief_reads_such_files_one_after_the_other(
    tmp_path: pathlib.Path,
) -> None:
    dataset = DatasetCreator(_csv, splits=_files(tmp_path)).get_tf_dataset()
    assert [int(x) for features, _ in dataset for x in features["x"]] == [
        *(0, 1, 2)
    ]
