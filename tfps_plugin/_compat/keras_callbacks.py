"""Private Keras API: the files of the TensorBoard callback.

It flushes them when training ends. An evaluator never trains, but each
evaluation should appear in TensorBoard at once.

Checked against Keras 3.12 to 3.15.
"""

from typing import Any


def flush_summaries(callback: Any) -> None:
    """Flushes the files of a `keras.callbacks.TensorBoard`."""
    for writer in callback._writers.values():
        writer.flush()
