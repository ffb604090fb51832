"""Losses that TensorFlow divides by the number of replicas.

In a custom loop of TensorFlow, a replica divides its losses by the size of the
whole batch, and gradients are added up. So does whoever adds up the losses to
show them. Here the gradient of a step is the mean over examples, so that the
shares of replicas may differ in size: what is shown has to be a part of a sum,
and what is differentiated a mean over the replica's own examples.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables
from tfps_plugin.strategy.parameter_server_strategy import (
    ParameterServerStrategy,
)
from tfps_plugin.variables.step_trace import StepTrace


def compute_average_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `tf.nn.compute_average_loss` for steps of several replicas.

    Its value is what TensorFlow's is; its gradient is that of the mean over the
    replica's own examples.
    """

    @functools.wraps(original)
    def average(
        per_example_loss: Any,
        sample_weight: Any = None,
        global_batch_size: Any = None,
    ) -> Any:
        number = _num_replicas()
        if number == 1:
            return original(per_example_loss, sample_weight, global_batch_size)
        # In a replica, TensorFlow sees one.
        mean = original(per_example_loss, sample_weight)
        with tensorflow_variables.stop_recording():
            if global_batch_size is None:
                part = mean / tf.cast(number, mean.dtype)
            else:
                part = original(
                    per_example_loss, sample_weight, global_batch_size
                )
        return tensorflow_variables.with_gradient_of(mean, part)

    return average


def scale_regularization_loss(
    original: Callable[..., Any],
) -> Callable[..., Any]:
    """Returns a `tf.nn.scale_regularization_loss` likewise.

    Every replica has the same penalty, and the gradient of their mean is its
    own.
    """

    @functools.wraps(original)
    def scale(regularization_loss: Any) -> Any:
        number = _num_replicas()
        total = original(regularization_loss)
        if number == 1:
            return total
        with tensorflow_variables.stop_recording():
            part = total / tf.cast(number, total.dtype)
        return tensorflow_variables.with_gradient_of(total, part)

    return scale


def _num_replicas() -> int:
    """Returns the number of replicas that make the step being traced."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, ParameterServerStrategy):
        return 1
    trace = StepTrace.current()
    number = 1 if trace.replica is None else len(strategy.replica_devices)
    exchange = trace.exchange
    if exchange is not None and exchange.reads_exactly:
        # Workers make the step together.
        number *= strategy.extended.num_batches_in_sync
    return number
