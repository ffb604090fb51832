"""`tfps.ExportBest`: keeps the best model so far in a file."""

import contextlib
import dataclasses
import json
import logging
import math
import os
import pathlib
from typing import Any
from typing import Literal

from tfps_plugin import errors
from tfps_plugin.evaluation.report import Evaluation

_logger = logging.getLogger("tfps_plugin.evaluation")

_ENDINGS = (".keras", ".weights.h5")


@dataclasses.dataclass(frozen=True)
class ExportBest:
    """Has a `tfps.SidecarEvaluator` keep the best model in a file.

    Beside `best.keras` it writes `best.keras.json`: the checkpoint that it
    is, its step and its metrics. An evaluator that is started again reads
    there what has to be beaten.

    The file is replaced in one step, so whoever reads it gets a whole model,
    the old one or the new one. It has no state of the optimizer.

    Attributes:
        path: Where it goes: a local file that ends in `.keras` (the model) or
            `.weights.h5` (its weights), outside the folder of checkpoints.
        monitor: The metric that decides.
        mode: Whether the smallest (`"min"`) or the largest (`"max"`) value
            is the best. It has to be said for all but `"loss"`.

    Raises:
        InputError: If the file's ending is another one, or `mode` is missing
            or unknown.
    """

    path: str | os.PathLike[str]
    monitor: str = "loss"
    mode: Literal["min", "max"] | None = None

    def __post_init__(self) -> None:
        if not os.fspath(self.path).endswith(_ENDINGS):
            raise errors.InputError(
                "The best model is exported to a file that ends in "
                f"{' or '.join(_ENDINGS)}. Received: "
                f"path={os.fspath(self.path)!r}"
            )
        if self.mode is None and self.monitor == "loss":
            object.__setattr__(self, "mode", "min")
        if self.mode not in ("min", "max"):
            raise errors.InputError(
                f"Which {self.monitor!r} is the best has to be said: "
                'mode="min" or mode="max". Received: '
                f"monitor={self.monitor!r}, mode={self.mode!r}"
            )

    def is_better(self, value: float, best: float | None) -> bool:
        """Whether a value is better than the best so far, None at first."""
        if math.isnan(value):
            return False
        if best is None:
            return True
        return value < best if self.mode == "min" else value > best


class BestModel:
    """The file of the best model, and what has to be beaten.

    Args:
        options: What the user asked for.

    Threading: of one thread.
    """

    def __init__(self, options: ExportBest) -> None:
        self._options = options
        self._path = pathlib.Path(options.path)
        self._note = self._path.with_name(f"{self._path.name}.json")
        self._best = self._read_best()

    def consider(self, evaluation: Evaluation, model: Any) -> bool:
        """Exports the model if it is the best so far.

        Args:
            evaluation: What it is worth.
            model: The model as it was evaluated.

        Returns:
            Whether it was.

        Raises:
            InputError: If there is no such metric.
            OSError: If the file cannot be written.
        """
        monitor = self._options.monitor
        numbers = evaluation.numbers
        if monitor not in numbers:
            raise errors.InputError(
                "The metric that decides on the best model is not among "
                f"those of the evaluation: {sorted(numbers)}. "
                f"Received: monitor={monitor!r}"
            )
        value = numbers[monitor]
        if not self._options.is_better(value, self._best):
            return False
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Keras chooses the format by the ending, so it stays the ending.
        part = self._path.with_name(f".part-{os.getpid()}-{self._path.name}")
        try:
            if part.name.endswith(".weights.h5"):
                model.save_weights(part, overwrite=True)
            else:
                model.save(part, overwrite=True)
            _replace(part, self._path)
            # Afterwards: a note without its model would be worse than a model
            # without its note.
            note = {
                "checkpoint": evaluation.checkpoint,
                "step": evaluation.step,
                "metrics": numbers,
            }
            part.write_text(f"{json.dumps(note, indent=2)}\n")
            _replace(part, self._note)
        finally:
            part.unlink(missing_ok=True)
        self._best = value
        return True

    def _read_best(self) -> float | None:
        if not self._path.exists():
            return None
        with contextlib.suppress(FileNotFoundError):
            try:
                note = json.loads(self._note.read_text())
                return float(note["metrics"][self._options.monitor])
            except (ValueError, KeyError, TypeError) as error:
                _logger.warning(
                    "%s does not say how good %s is: the next model replaces "
                    "it. Received: %s: %s",
                    self._note,
                    self._path,
                    type(error).__name__,
                    error,
                )
        return None


def _replace(part: pathlib.Path, target: pathlib.Path) -> None:
    """Puts a file in another's place; a crash leaves one of the two."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    part.replace(target)
