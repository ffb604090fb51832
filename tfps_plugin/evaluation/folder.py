"""The folder that is followed: what is in it, and loading it whole."""

import logging
from typing import Any

from tfps_plugin.evaluation import files
from tfps_plugin.evaluation.checkpoint import Checkpoint
from tfps_plugin.evaluation.checkpoint import CheckpointKind
from tfps_plugin.evaluation.keras_files import KerasArchive
from tfps_plugin.evaluation.keras_files import WeightsFile
from tfps_plugin.evaluation.tensorflow_prefix import TensorFlowPrefix

_logger = logging.getLogger("tfps_plugin.evaluation")

# Another way to write checkpoints is another class in this list.
KINDS: tuple[CheckpointKind, ...] = (
    KerasArchive(),
    WeightsFile(),
    TensorFlowPrefix(),
)


class CheckpointFolder:
    """The checkpoints that a training writes.

    Args:
        path: The folder; it need not be there yet.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def find(self) -> list[Checkpoint]:
        """All checkpoints that are there now, complete or not."""
        listing = files.list_files(self.path)
        return [each for kind in KINDS for each in kind.find(listing)]

    def load(self, checkpoint: Checkpoint, model: Any) -> int:
        """Gives a model all weights of a checkpoint.

        Args:
            checkpoint: What `find` has found.
            model: A built `keras.Model`. After an error its weights are
                anything.

        Returns:
            The step of the checkpoint; the number in its name if it does not
            have the optimizer's counter.

        Raises:
            Exception: If it is gone, incomplete, was written again meanwhile
                or is that of another model.
        """
        step = checkpoint.kind.load(checkpoint, model)
        stamp = files.stamp_of(checkpoint.file)
        # One that was deleted after it was read is as good as ever.
        if stamp not in (None, checkpoint.stamp):
            raise OSError("It was written again while it was read.")
        if step is not None:
            return step
        number = checkpoint.number or 0
        _logger.warning(
            "The checkpoint %s does not say how many steps the optimizer has "
            "made; step %d is shown, the number in its name.",
            checkpoint.path,
            number,
        )
        return number
