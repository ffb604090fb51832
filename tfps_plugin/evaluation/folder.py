"""Folder that the evaluator follows: finds and loads its checkpoints."""

import logging
from typing import Any

from tfps_plugin.evaluation import files
from tfps_plugin.evaluation.checkpoint import Checkpoint
from tfps_plugin.evaluation.checkpoint import CheckpointKind
from tfps_plugin.evaluation.keras_files import KerasArchive
from tfps_plugin.evaluation.keras_files import WeightsFile
from tfps_plugin.evaluation.tensorflow_prefix import TensorFlowPrefix

_logger = logging.getLogger("tfps_plugin.evaluation")

# To support another format of checkpoints, add its class here.
KINDS: tuple[CheckpointKind, ...] = (
    KerasArchive(),
    WeightsFile(),
    TensorFlowPrefix(),
)


class CheckpointFolder:
    """Checkpoints that a training writes.

    Args:
        path: The folder; it need not exist yet.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def find(self) -> list[Checkpoint]:
        """Returns all checkpoints in the folder now, complete or not."""
        listing = files.list_files(self.path)
        return [each for kind in KINDS for each in kind.find(listing)]

    def load(self, checkpoint: Checkpoint, model: Any) -> int:
        """Assigns all weights of a checkpoint to a model.

        Args:
            checkpoint: A checkpoint from `find`.
            model: A built `keras.Model`. After an error its weights are
                undefined.

        Returns:
            The optimizer's step count; if the checkpoint lacks it, the number
            in its name.

        Raises:
            Exception: If the checkpoint is gone, incomplete, was rewritten
                meanwhile, or belongs to another model.
        """
        step = checkpoint.kind.load(checkpoint, model)
        stamp = files.stamp_of(checkpoint.file)
        # A file may be deleted after reading, but must not be rewritten.
        if stamp not in (None, checkpoint.stamp):
            raise OSError(
                f"The file {checkpoint.file!r} was written again while it was "
                "read."
            )
        if step is not None:
            return step
        number = checkpoint.number or 0
        _logger.warning(
            "The checkpoint %s does not contain the optimizer's step count; "
            "step %d is shown, the number in its name.",
            checkpoint.path,
            number,
        )
        return number
