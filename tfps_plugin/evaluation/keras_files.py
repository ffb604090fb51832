"""Checkpoints in Keras's own files: `.keras` and `.weights.h5`.

HDF5 locks a file while it reads it, so that a training that overwrites its
checkpoint would fail because of the evaluator. Therefore the file is copied
first, without a lock, and Keras reads the copy.
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
# Place of the weights in an archive, and of the optimizer's step counter, its
# first variable, in the weights.
_ARCHIVE_MEMBER = f"model{_WEIGHTS_ENDING}"
_ITERATIONS = "optimizer/vars/0"


class WeightsFile:
    """File of `ModelCheckpoint(save_weights_only=True)`: `name.weights.h5`.

    The optimizer's slots are not loaded; an evaluation does not need them.
    """

    ending = _WEIGHTS_ENDING
    pattern = f"*{_WEIGHTS_ENDING}"

    def find(self, listing: Iterable[tuple[str, Stamp]]) -> list[Checkpoint]:
        """Returns the files with this extension."""
        return [
            Checkpoint(
                path=path,
                name=os.path.basename(path).removesuffix(self.ending),
                file=path,
                stamp=stamp,
                kind=self,
            )
            for path, stamp in listing
            # A leading dot marks a file that will be renamed once complete.
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
    """Archive of `ModelCheckpoint` and `model.save`: `name.keras`.

    Only its weights are read, and verified against their checksum.
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
