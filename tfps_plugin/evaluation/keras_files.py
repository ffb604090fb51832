"""Checkpoints in Keras's own files.

HDF5 locks a file that it reads, and then nobody can write it: a training that
overwrites its checkpoint would fail because of the evaluator. So the file is
copied first, by plain reading, and Keras reads the copy.
"""

import os
import pathlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterable
from typing import Any

import h5py
import numpy as np

from tfps_plugin.evaluation import files
from tfps_plugin.evaluation.checkpoint import Checkpoint
from tfps_plugin.evaluation.checkpoint import Stamp

_WEIGHTS_ENDING = ".weights.h5"
_ARCHIVE_ENDING = ".keras"
# Where an archive has the weights, and weights have the optimizer's counter:
# the first of its variables.
_ARCHIVE_MEMBER = f"model{_WEIGHTS_ENDING}"
_ITERATIONS = "optimizer/vars/0"


class WeightsFile:
    """`name.weights.h5`, as `ModelCheckpoint(save_weights_only=True)` writes.

    The optimizer's slots are not loaded: an evaluation does not need them.
    """

    ending = _WEIGHTS_ENDING
    pattern = f"*{_WEIGHTS_ENDING}"

    def find(self, listing: Iterable[tuple[str, Stamp]]) -> list[Checkpoint]:
        """The files with this ending."""
        return [
            Checkpoint(
                path=path,
                name=os.path.basename(path).removesuffix(self.ending),
                file=path,
                stamp=stamp,
                kind=self,
            )
            for path, stamp in listing
            # Who writes a file to rename it afterwards hides it with a dot.
            if path.endswith(self.ending)
            and not os.path.basename(path).startswith(".")
        ]

    def load(self, checkpoint: Checkpoint, model: Any) -> int | None:
        """Loads a copy of the file; see `CheckpointKind.load`."""
        with tempfile.TemporaryDirectory(prefix="tfps_sidecar_") as folder:
            weights = pathlib.Path(folder) / _ARCHIVE_MEMBER
            self._fetch_weights(checkpoint.path, weights)
            model.load_weights(
                weights,
                objects_to_skip=[getattr(model, "optimizer", None)],
            )
            return _read_iterations(weights)

    def _fetch_weights(self, path: str, target: pathlib.Path) -> None:
        files.copy(path, str(target))


class KerasArchive(WeightsFile):
    """`name.keras`, as `ModelCheckpoint` and `model.save` write it.

    Only its weights are read. Bytes are compared with their checksums.
    """

    ending = _ARCHIVE_ENDING
    pattern = f"*{_ARCHIVE_ENDING}"

    def _fetch_weights(self, path: str, target: pathlib.Path) -> None:
        local = path
        if files.is_remote(path):
            local = f"{target}{_ARCHIVE_ENDING}"
            files.copy(path, local)
        with (
            zipfile.ZipFile(local) as archive,
            archive.open(_ARCHIVE_MEMBER) as member,
            target.open("wb") as out,
        ):
            shutil.copyfileobj(member, out)


def _read_iterations(weights: pathlib.Path) -> int | None:
    with h5py.File(weights, "r") as file:
        counter = file.get(_ITERATIONS)
        if (
            not isinstance(counter, h5py.Dataset)
            or counter.shape != ()
            or not np.issubdtype(counter.dtype, np.integer)
        ):
            return None
        return int(counter[()])
