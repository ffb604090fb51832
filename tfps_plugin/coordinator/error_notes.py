"""Tells people more about an exception than its message does.

Notes stand below the message in a traceback (PEP 678); the exception stays the
user's own.
"""

import logging
from collections.abc import Callable

import tensorflow as tf

from tfps_plugin._compat import tensorflow_execution
from tfps_plugin.coordinator import error_text
from tfps_plugin.coordinator.members import failures

_OF_A_WORKER = "Raised by a function that ran on worker"

_logger = logging.getLogger("tfps_plugin.coordinator")


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
        """Adds notes to what a function has raised on a worker.

        What TensorFlow says of it is shortened; the log has it in full, at
        level DEBUG.
        """
        add_once(error, f"{_OF_A_WORKER} {worker_index}.")
        if isinstance(error, tf.errors.ResourceExhaustedError):
            for ps_index in failures.named_ps(str(error)):
                add_once(
                    error,
                    f"Parameter server {ps_index} holds "
                    f"{self._holdings(ps_index)}. What to do: give it more "
                    "memory, cut its tables into more shards, or use more "
                    "parameter servers.",
                )
        _logger.debug("In full:", exc_info=error)
        traceback = error_text.users_part(error.__traceback__)
        if traceback is not None:
            error.__traceback__ = traceback
        if isinstance(error, tf.errors.OpError):
            # Last, because all tasks that had a part are in the full text. It
            # says where the user's lines are; what has called the function is
            # a thread of ours.
            error.__traceback__ = traceback
            tensorflow_execution.set_message(
                error, error_text.shortened(str(error))
            )


def fold(error: BaseException) -> BaseException:
    """Leaves out frames of Keras, TensorFlow and ours of what `fit` raises.

    The user's own stay, and those of whatever else they call. An exception
    that is neither about the user's code nor raised by a function on a worker
    keeps all frames: somebody has to find out where it comes from.

    Args:
        error: Caught where the user has called us.

    Returns:
        The same exception.
    """
    own = error_text.without_frameworks(error.__traceback__)
    is_of_a_worker = any(
        note.startswith(_OF_A_WORKER)
        for note in getattr(error, "__notes__", ())
    )
    if own is None and not is_of_a_worker:
        return error
    _logger.debug("With all frames:", exc_info=error)
    return error.with_traceback(own)


def add_once(error: BaseException, note: str) -> None:
    """Adds a note, unless the exception has it."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
