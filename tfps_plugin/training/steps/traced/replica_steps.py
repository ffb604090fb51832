"""A model's step in all replicas of a worker."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin.strategy.replicas import per_replica
from tfps_plugin.strategy.replicas import split_batches
from tfps_plugin.strategy.replicas.per_replica import PerReplica
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.per_worker.worker_seeds import WorkerLocalSeed
from tfps_plugin.variables.states.flow import Flow


def run(strategy: Any, step: Callable[[Any], Any], data: Any) -> Any:
    """Runs a step that trains or evaluates, while it is traced.

    Args:
        strategy: The strategy.
        step: A function of a batch.
        data: The batch of the worker.

    Returns:
        What the step returns: the mean over examples, as of the loss of a
        batch; or what the last replica returns, as of metrics, which all
        replicas have updated by then.
    """
    number = len(strategy.replica_devices)
    if number == 1:
        return strategy.run(step, args=(data,))
    results = strategy.run(step, args=(split_batches.split(data, number),))
    flow = Flow(tf.compat.v1.get_default_graph())
    of_metrics = 0
    for variable in flow.variables:
        if isinstance(variable, WorkerLocalVariable) and not isinstance(
            variable, WorkerLocalSeed
        ):
            of_metrics |= flow.reads(variable)

    def reduced(value: PerReplica) -> Any:
        last = value.values[-1]
        if last.dtype.is_floating and not flow.root.mask(last) & of_metrics:
            return value.mean_over_examples()
        return last

    return per_replica.map_values(reduced, results)


def predict(strategy: Any, step: Callable[[Any], Any], data: Any) -> Any:
    """Runs a step that predicts, while it is traced.

    Args:
        strategy: The strategy.
        step: A function of a batch.
        data: The batch of the worker.

    Returns:
        The predictions for all examples, in their order.
    """
    number = len(strategy.replica_devices)
    if number == 1:
        return strategy.run(step, args=(data,))
    return split_batches.whole(
        strategy.run(step, args=(split_batches.split(data, number),))
    )
