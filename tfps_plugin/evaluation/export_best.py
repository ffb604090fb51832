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
    """Options for a `tfps.SidecarEvaluator` to keep the best model in a file.

    Beside `best.keras` the evaluator writes `best.keras.json`, with the path
    of the checkpoint, its step and its metrics. An evaluator that is started
    again reads the best value so far from it.

    The file is replaced atomically: a reader gets the whole old model or the
    whole new one. It does not contain the state of the optimizer.

    ```python
    tfps.ExportBest("best/model.keras", monitor="auc", mode="max")
    ```

    Args:
        path: A local file that ends in `.keras` (the model) or `.weights.h5`
            (its weights), outside the folder of checkpoints.
        monitor: Name of the metric that decides.
        mode: Whether the smallest (`"min"`) or the largest (`"max"`) value
            is the best. Required for every metric except `"loss"`.

    Raises:
        InputError: If the file has another extension, or `mode` is missing or
            unknown.
    """

    path: str | os.PathLike[str]
    monitor: str = "loss"
    mode: Literal["min", "max"] | None = None

    def __post_init__(self) -> None:
        if not os.fspath(self.path).endswith(_ENDINGS):
            raise errors.InputError(
                "The best model cannot be exported to this file. Expected a "
                f"name that ends in {' or '.join(_ENDINGS)}. Received: "
                f"path={os.fspath(self.path)!r}"
            )
        if self.mode is None and self.monitor == "loss":
            object.__setattr__(self, "mode", "min")
        if self.mode not in ("min", "max"):
            raise errors.InputError(
                f"It is unknown which {self.monitor!r} is the best. Expected "
                'mode="min" or mode="max". Received: '
                f"monitor={self.monitor!r}, mode={self.mode!r}"
            )

    def is_better(self, value: float, best: float | None) -> bool:
        """Returns whether a value is better than the best so far.

        Args:
            value: The new value; NaN is never better.
            best: The best value so far; None before the first.

        Returns:
            Whether it is better.
        """
        if math.isnan(value):
            return False
        if best is None:
            return True
        return value < best if self.mode == "min" else value > best


class BestModel:
    """File of the best model, and the best value so far.

    Args:
        options: The options of the user.

    Threading: for one thread only.
    """

    def __init__(self, options: ExportBest) -> None:
        self._options = options
        self._path = pathlib.Path(options.path)
        self._note = self._path.with_name(f"{self._path.name}.json")
        self._best = self._read_best()

    def consider(self, evaluation: Evaluation, model: Any) -> bool:
        """Exports the model if it is the best so far.

        Args:
            evaluation: The evaluation of the model.
            model: The model, with the weights that were evaluated.

        Returns:
            Whether it was exported.

        Raises:
            InputError: If the evaluation does not have the metric.
            OSError: If the file cannot be written.
        """
        monitor = self._options.monitor
        numbers = evaluation.numbers
        if monitor not in numbers:
            raise errors.InputError(
                "The metric that decides on the best model is not in the "
                f"evaluation. Expected one of {sorted(numbers)}. "
                f"Received: monitor={monitor!r}"
            )
        value = numbers[monitor]
        if not self._options.is_better(value, self._best):
            return False
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Keras chooses the format by the extension, so it has to stay last.
        part = self._path.with_name(f".part-{os.getpid()}-{self._path.name}")
        try:
            if part.name.endswith(".weights.h5"):
                model.save_weights(part, overwrite=True)
            else:
                model.save(part, overwrite=True)
            _replace(part, self._path)
            # Written last: a model without its note does less harm than a
            # note without its model.
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
                    "%s does not contain the quality of %s, so the next model "
                    "replaces it. Received: %s: %s",
                    self._note,
                    self._path,
                    type(error).__name__,
                    error,
                )
        return None


def _replace(part: pathlib.Path, target: pathlib.Path) -> None:
    """Replaces a file atomically: a crash leaves the old or the new one."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    part.replace(target)
