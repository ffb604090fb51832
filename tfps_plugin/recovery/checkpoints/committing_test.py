"""A checkpoint is there, whole, or it is not."""

import pathlib

import pytest
import tensorflow as tf

from tfps_plugin.recovery.checkpoints import committing


def _part(written: str, number: int, value: float) -> str:
    prefix = f"{written}-{number}"
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=[f"v{number}"],
        shape_and_slices=[""],
        tensors=[tf.constant(value)],
    )
    return prefix


def _write(prefix: str, *values: float) -> None:
    written = committing.begin(prefix)
    parts = [_part(written, i, value) for i, value in enumerate(values)]
    committing.commit(written, parts, prefix)


def _exists(prefix: str) -> bool:
    return pathlib.Path(prefix + ".index").exists()


def _names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_parts_become_one(tmp_path: pathlib.Path) -> None:
    prefix = str(tmp_path / "ckpt-1")
    assert not _exists(prefix)
    _write(prefix, 1.0, 2.0)
    assert _exists(prefix)
    reader = tf.train.load_checkpoint(prefix)
    assert [reader.get_tensor(k) for k in ("v0", "v1")] == [1.0, 2.0]
    assert all(name.startswith("ckpt-1.") for name in _names(tmp_path))


def test_what_was_never_committed_leaves_the_one_before(
    tmp_path: pathlib.Path,
) -> None:
    prefix = str(tmp_path / "ckpt-1")
    _write(prefix, 1.0)
    before = _names(tmp_path)
    written = committing.begin(prefix)
    _part(written, 0, 5.0)
    assert tf.train.load_checkpoint(prefix).get_tensor("v0") == 1.0
    # As if the process had died here, and another one looks at the folder.
    committing.discard_all(str(tmp_path))
    assert _names(tmp_path) == before
    assert tf.train.load_checkpoint(prefix).get_tensor("v0") == 1.0


def test_one_of_the_same_name_is_replaced(tmp_path: pathlib.Path) -> None:
    prefix = str(tmp_path / "ckpt-1")
    _write(prefix, 1.0)
    _write(prefix, 7.0)
    assert tf.train.load_checkpoint(prefix).get_tensor("v0") == 7.0


@pytest.mark.parametrize("name", ["ckpt-1", "with [1] and *"])
def test_it_is_removed_alone(tmp_path: pathlib.Path, name: str) -> None:
    _write(str(tmp_path / name), 1.0)
    _write(str(tmp_path / "ckpt-10"), 2.0)
    committing.remove(str(tmp_path / name))
    assert not _exists(str(tmp_path / name))
    assert all(n.startswith("ckpt-10.") for n in _names(tmp_path))
