"""An evaluation, printed and as summaries."""

import dataclasses
import os
from typing import Any

import tensorflow as tf

# Has TensorBoard draw a curve.
_SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"),
    data_class="DATA_CLASS_SCALAR",
)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What one checkpoint was found to be worth.

    Attributes:
        checkpoint: The path of the checkpoint.
        step: The optimizer's steps up to it.
        metrics: Name of each metric, the loss included, and its value: a
            number, or what else the metric answers.
    """

    checkpoint: str
    step: int
    metrics: dict[str, Any]

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics that are one number: what can be shown and compared."""
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
    """Writes evaluations for TensorBoard, as Keras's own callback does.

    Args:
        log_dir: They go to its folder `validation`.

    Threading: of one thread.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self._folder = os.path.join(os.fspath(log_dir), "validation")
        self._writer: Any = None

    def write(self, evaluation: Evaluation) -> None:
        """Writes each metric at the step, for everybody to see at once."""
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._folder)
        with self._writer.as_default():
            for name, value in evaluation.numbers.items():
                # tf.summary.scalar would need TensorBoard to be installed
                # here too, and not only where somebody looks.
                tf.summary.write(
                    f"evaluation_{name}_vs_iterations",
                    tf.constant(value, tf.float32),
                    step=evaluation.step,
                    metadata=_SCALAR,
                )
        self._writer.flush()

    def close(self) -> None:
        """Closes the file; it may be called again."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
