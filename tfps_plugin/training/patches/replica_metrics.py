"""Metrics that count batches, in steps of several replicas.

A scalar without a weight, such as the loss of an output, counts as one batch.
A replica has a part of a batch, so its scalar counts as that part: all together
are one batch again, and the scalar of the batch is the mean over its examples.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.step_trace import StepTrace


def update_state(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an `update_state` of `Mean` or `Sum` that weighs replicas."""

    @functools.wraps(original)
    def update(self: Any, values: Any, sample_weight: Any = None) -> Any:
        replica = StepTrace.current().replica
        if replica is not None and sample_weight is None:
            values = tf.convert_to_tensor(values)
            if values.shape.rank == 0:
                sample_weight = replica.weight
        return original(self, values, sample_weight=sample_weight)

    return update
