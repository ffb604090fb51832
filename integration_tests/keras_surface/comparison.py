"""Comparison of two runs of the same Keras program."""

import io
import itertools
import json
import pathlib
import re
import zipfile
from typing import Any

import h5py
import keras
import numpy as np

_HOOKS = (
    *("on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end"),
    *("on_train_batch_begin", "on_train_batch_end"),
    *("on_test_begin", "on_test_end"),
    *("on_test_batch_begin", "on_test_batch_end"),
    *("on_predict_begin", "on_predict_end"),
    *("on_predict_batch_begin", "on_predict_batch_end"),
)
# Batch logs lag behind by the steps in flight: the first have none yet.
_WITH_LOGS = ("on_train_end", "on_epoch_end", "on_test_end")


class Calls(keras.callbacks.Callback):
    """Records every call of a callback: the hook, its argument, its logs.

    Attributes:
        made: The calls, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[Any, ...]] = []

    def count(self, hook: str) -> int:
        """Returns how often a hook was called."""
        return sum(call[0] == hook for call in self.made)


def _noting(hook: str) -> Any:
    def note(self: Calls, *args: Any, logs: Any = None) -> None:
        if args and not isinstance(args[-1], int):
            *args_, logs = args
            args = tuple(args_)
        keys = tuple(sorted(logs or ())) if hook in _WITH_LOGS else ()
        self.made.append((hook, *args, *keys))

    return note


for _hook in _HOOKS:
    setattr(Calls, _hook, _noting(_hook))


def assert_same(
    ours: Any, alone: Any, *, rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    """Compares nested structures: strings exactly, numbers approximately."""
    keras.tree.assert_same_structure(ours, alone)
    for mine, theirs in zip(
        keras.tree.flatten(ours), keras.tree.flatten(alone), strict=True
    ):
        if theirs is None or isinstance(theirs, str):
            assert mine == theirs, _difference(str(mine), str(theirs))
        else:
            np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=atol)


def _difference(mine: str, theirs: str) -> str:
    pairs = itertools.zip_longest(mine, theirs)
    start = next(i for i, (a, b) in enumerate(pairs) if a != b)
    near = slice(max(0, start - 60), start + 60)
    return f"ours: ...{mine[near]}...; alone: ...{theirs[near]}..."


def contents(path: pathlib.Path) -> Any:
    """Returns the names and values in a file of weights or of a model."""
    if path.suffix != ".keras":
        return _datasets(path)
    with zipfile.ZipFile(path) as archive:
        members = sorted(archive.namelist())
        config = json.loads(archive.read("config.json"))
        weights = io.BytesIO(archive.read("model.weights.h5"))
        return {
            "members": members,
            "config": _renumbered(json.dumps(config, sort_keys=True)),
            "weights": _datasets(weights),
        }


def _renumbered(config: str) -> str:
    """Replaces object ids, which are addresses, by their order in the text."""
    numbers: dict[str, str] = {}
    return re.sub(
        r'(?<="shared_object_id": )\d+',
        lambda found: numbers.setdefault(found[0], f"{len(numbers)}"),
        config,
    )


def _datasets(file: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[f"{name}: {item.dtype}"] = item[()]
        else:
            found[f"{name}/"] = str(sorted(item.attrs.items()))

    with h5py.File(file) as opened:
        opened.visititems(visit)
    return found
