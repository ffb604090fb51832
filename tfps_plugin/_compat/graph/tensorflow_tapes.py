"""Private TensorFlow API: functions and the tapes that record around them.

A tape sees the operations of the function that it was opened in. Calls of
other functions, branches and loops it differentiates as a whole: TensorFlow
then goes through their operations, and knows nothing of what they have told
tapes.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import ops

from tfps_plugin import errors

# Whether a tape was recording when the trace of a function began.
_UNDER_A_TAPE = "_tfps_under_a_tape"

# Registered once: it is found by its name.
_NO_GRADIENT = "TfpsOnlyForTapesOfTheFunction"

with contextlib.suppress(KeyError):  # if this module is imported anew

    @tf.RegisterGradient(_NO_GRADIENT)
    def _no_gradient(operation: tf.Operation, *_: Any) -> Any:
        raise errors.UnsupportedError(
            "A function looks up rows that workers keep (cache_rows), for "
            "tapes of its own; a tape around a later call of it would miss "
            "their gradient. Expected: a function that is called under that "
            "tape when it is traced, or no tape around it. Received: "
            f"operation={operation.name!r}. Make a tf.function of its own for "
            "the calls under the tape, or the layer without cache_rows."
        )


def noted(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a `FuncGraph.__init__` that notes tapes around the function."""

    @functools.wraps(original)
    def begin(self: Any, name: Any, *args: Any, **kwargs: Any) -> None:
        original(self, name, *args, **kwargs)
        setattr(self, _UNDER_A_TAPE, bool(record.could_possibly_record()))

    return begin


def are_its_own(graph: tf.Graph) -> bool:
    """Returns whether no tape was recording when a function's trace began.

    Then all tapes that record there were opened in it, and see what it tells
    them.

    Args:
        graph: The function that is being traced; a branch or the body of a
            loop is one of its own.
    """
    return getattr(graph, _UNDER_A_TAPE, True) is False


def only_for_its_own(value: tf.Tensor) -> tf.Tensor:
    """Returns a value that only tapes of its function can differentiate.

    Args:
        value: A tensor of the function that is being traced.

    Returns:
        The same value. If a tape differentiates the function as a whole, and
        needs the gradient of the value, it raises an
        `errors.UnsupportedError`.
    """
    with (
        record.stop_recording(),
        ops.get_default_graph().gradient_override_map(
            {"Identity": _NO_GRADIENT}
        ),
    ):
        return tf.identity(value)
