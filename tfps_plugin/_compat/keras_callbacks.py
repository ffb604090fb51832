"""Private Keras API: the files of the TensorBoard callback.

It writes them out when training ends. An evaluator never trains, and whoever
watches TensorBoard wants to see each evaluation at once.

Checked against Keras 3.12 to 3.15.
"""

from typing import Any


def flush_summaries(callback: Any) -> None:
    """Writes out what a `keras.callbacks.TensorBoard` has written so far."""
    for writer in callback._writers.values():
        writer.flush()
