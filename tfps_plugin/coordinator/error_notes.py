"""Tells people more about an exception than its message does.

Notes stand below the message in a traceback (PEP 678); the exception stays the
user's own.
"""

from collections.abc import Callable

import tensorflow as tf

from tfps_plugin.coordinator import failures


class ErrorNotes:
    """Adds where an exception came from, and who holds what.

    Threading: any thread.
    """

    def __init__(self, holdings: Callable[[int], str]) -> None:
        """Takes who knows what parameter servers hold.

        Args:
            holdings: What a ps holds, in words, by its index.
        """
        self._holdings = holdings

    def add(self, error: BaseException, worker_index: int) -> None:
        """Adds notes to what a function has raised on a worker."""
        add_once(
            error, f"Raised by a function that ran on worker {worker_index}."
        )
        if isinstance(error, tf.errors.ResourceExhaustedError):
            for ps_index in failures.named_ps(str(error)):
                add_once(
                    error,
                    f"Parameter server {ps_index} holds "
                    f"{self._holdings(ps_index)}. What to do: give it more "
                    "memory, cut its tables into more shards, or use more "
                    "parameter servers.",
                )


def add_once(error: BaseException, note: str) -> None:
    """Adds a note, unless the exception has it."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
