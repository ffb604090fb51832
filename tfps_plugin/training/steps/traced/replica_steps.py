"""A model's step in all replicas of a worker."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.strategy.replicas import per_replica
from tfps_plugin.strategy.replicas import split_batches
from tfps_plugin.strategy.replicas.device_copies import CopiedBatch
from tfps_plugin.strategy.replicas.per_replica import PerReplica
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.per_worker.worker_seeds import WorkerLocalSeed
from tfps_plugin.variables.states import combining
from tfps_plugin.variables.states.flow import Flow


def run(strategy: Any, step: Callable[[Any], Any], data: Any) -> Any:
    """Runs a step that trains or evaluates, while it is traced.

    Args:
        strategy: The strategy.
        step: A function of a batch.
        data: The batch of the worker, or a `CopiedBatch`.

    Returns:
        What the step returns: the mean over examples of a float, as of the
        loss of a batch; of a metric, and of what does not depend on the batch,
        what the last replica returns, after all have updated it.

    Raises:
        UnsupportedError: If it returns anything else.
    """
    number = len(strategy.replica_devices)
    results = strategy.run(step, args=(_shares(data, number),))
    if number == 1:
        return results
    flow = Flow(tf.compat.v1.get_default_graph())
    of_metrics = 0
    for variable in flow.variables:
        if isinstance(variable, WorkerLocalVariable) and not isinstance(
            variable, WorkerLocalSeed
        ):
            of_metrics |= flow.reads(variable)

    def reduced(value: PerReplica) -> Any:
        last = value.values[-1]
        if flow.root.mask(last) & of_metrics or not combining.depends_on_data(
            last
        ):
            return last
        if last.dtype.is_floating:
            return value.mean_over_examples()
        raise errors.UnsupportedError(
            "The step of a model returns a value of its batch, and each "
            "replica of a worker has one of its own. Expected metrics, or "
            f"floats that are means over the batch. Received: {last!r}. Count "
            "in a metric, cast it, or train with replicas_per_worker=1."
        )

    return per_replica.map_values(reduced, results)


def predict(strategy: Any, step: Callable[[Any], Any], data: Any) -> Any:
    """Runs a step that predicts, while it is traced.

    Args:
        strategy: The strategy.
        step: A function of a batch.
        data: The batch of the worker, or a `CopiedBatch`.

    Returns:
        The predictions for all examples, in their order.
    """
    number = len(strategy.replica_devices)
    results = strategy.run(step, args=(_shares(data, number),))
    return results if number == 1 else split_batches.whole(results)


def _shares(data: Any, number: int) -> Any:
    """Returns the batch for each of so many replicas."""
    if isinstance(data, CopiedBatch):
        return data.shares(number)
    return data if number == 1 else split_batches.split(data, number)
