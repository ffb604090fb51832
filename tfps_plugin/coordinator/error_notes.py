"""Notes on exceptions of closures, for people.

Tracebacks show notes below the message (PEP 678). The exception itself stays
the user's own.
"""

import logging
from collections.abc import Callable

import tensorflow as tf

from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.coordinator import error_text
from tfps_plugin.coordinator.members import failures

_OF_A_WORKER = "Raised by a function that ran on worker"

_logger = logging.getLogger("tfps_plugin.coordinator")


class ErrorNotes:
    """Adds notes to exceptions: the worker, and what a full ps holds.

    Threading: safe from any thread.
    """

    def __init__(self, holdings: Callable[[int], str]) -> None:
        """Creates the notes.

        Args:
            holdings: Describes what a ps holds, by its index.
        """
        self._holdings = holdings

    def add(self, error: BaseException, worker_index: int) -> None:
        """Adds notes to an exception that a function raised on a worker.

        The text of TensorFlow's own errors is shortened. The log has the full
        text, at level DEBUG.

        Args:
            error: The exception; changed in place.
            worker_index: The worker that the function ran on.
        """
        add_once(error, f"{_OF_A_WORKER} {worker_index}.")
        if isinstance(error, tf.errors.ResourceExhaustedError):
            for ps_index in failures.named_ps(str(error)):
                add_once(
                    error,
                    f"Parameter server {ps_index} holds "
                    f"{self._holdings(ps_index)}. What to do: give it more "
                    "memory, split its tables into more shards, or use more "
                    "parameter servers.",
                )
        _logger.debug("In full:", exc_info=error)
        traceback = error_text.users_part(error.__traceback__)
        if traceback is not None:
            error.__traceback__ = traceback
        if isinstance(error, tf.errors.OpError):
            # Last, because only the full text names all tasks. The text has
            # the user's lines; the traceback only leads to our own thread.
            error.__traceback__ = traceback
            tensorflow_execution.set_message(
                error, error_text.shortened(str(error))
            )


def fold(error: BaseException) -> BaseException:
    """Removes frames of Keras, TensorFlow and this package from a traceback.

    Frames of the user's code stay, and those of any other code that it calls.
    An exception keeps all frames if it neither passed through the user's code
    nor comes from a function on a worker: they are needed to find its origin.

    Args:
        error: An exception that `fit` or another public method raises.

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
    """Adds a note to an exception, unless it has the same note."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
