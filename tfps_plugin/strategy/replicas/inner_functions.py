"""Functions inside of a step that replicas or workers make together.

TensorFlow traces a `tf.function` once, and takes the trace wherever the
function is called again. What a step does depends on who makes it, so it must
not take the trace of another step, nor one replica that of another.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.step_trace import StepTrace


def traced_for_each(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `make_function_context` that tells steps and replicas apart.

    Its result is a part of the key by which TensorFlow finds a trace.
    """

    @functools.wraps(original)
    def make(scope_type: Any = None) -> Any:
        context = original(scope_type)
        if tf.executing_eagerly():
            return context
        trace = StepTrace.current()
        if trace.replica is None and trace.exchange is None:
            return context
        index = None if trace.replica is None else trace.replica.index
        return context._replace(scope_type=(scope_type, trace.token, index))

    return make
