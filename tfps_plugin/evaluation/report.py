"""Report of an evaluation: as text, and as summaries for TensorBoard."""

import dataclasses
import os
from typing import Any

import tensorflow as tf

# Makes TensorBoard draw a curve.
_SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"),
    data_class="DATA_CLASS_SCALAR",
)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Result of evaluating one checkpoint.

    Attributes:
        checkpoint: Path of the checkpoint.
        step: Optimizer step of the checkpoint.
        metrics: Values of all metrics and the loss, by name: numbers, or
            whatever else a metric returns.
    """

    checkpoint: str
    step: int
    metrics: dict[str, Any]

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics that are single numbers, by name."""
        return {
            name: value
            for name, value in self.metrics.items()
            if isinstance(value, int | float)
        }

    def __str__(self) -> str:
        values = ", ".join(
            f"{name}: {value:.4g}" for name, value in self.numbers.items()
        )
        name = os.path.basename(self.checkpoint)
        return f"{name} (step {self.step}): {values}"


class Summaries:
    """Writer of evaluations for TensorBoard, in the form of Keras's callback.

    Args:
        log_dir: The folder of logs; its subfolder `validation` is used.

    Threading: for one thread only.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self._folder = os.path.join(os.fspath(log_dir), "validation")
        self._writer: Any = None

    def write(self, evaluation: Evaluation) -> None:
        """Writes each metric at the evaluation's step, and flushes the file."""
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._folder)
        with self._writer.as_default():
            for name, value in evaluation.numbers.items():
                # tf.summary.scalar would require TensorBoard to be installed
                # on this machine, too.
                tf.summary.write(
                    f"evaluation_{name}_vs_iterations",
                    tf.constant(value, tf.float32),
                    step=evaluation.step,
                    metadata=_SCALAR,
                )
        self._writer.flush()

    def close(self) -> None:
        """Closes the file; further calls do nothing."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
