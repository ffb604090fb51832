"""The context of a step on one worker, and reductions in it."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_strategy as compat
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.strategy.consistency import Sync
from tfps_plugin.strategy.replicas import per_replica
from tfps_plugin.variables.step_trace import StepTrace

# Values that `tf.convert_to_tensor` would make dense, or refuses to.
_NOT_DENSE = (tf.IndexedSlices, tf.SparseTensor, tf.RaggedTensor)


class ReplicaContext(compat.ReplicaContext):
    """The context of a step on one worker.

    Steps on the chief, and asynchronous ones on workers with one replica, have
    one replica: a value is its own sum. A synchronous step has those of all
    workers.
    """

    def _merge_call(self, merge_fn: Any, args: Any, kwargs: Any) -> Any:
        """Calls a function once for all replicas of the worker."""
        replica = StepTrace.current().replica
        if replica is None:
            return super()._merge_call(merge_fn, args, kwargs)
        call = super()._merge_call
        sizes = replica.sizes

        def merged(given: Sequence[Any]) -> list[Any]:
            all_args, all_kwargs = per_replica.together(given, sizes)
            result = call(merge_fn, all_args, all_kwargs)
            return [
                per_replica.of_replica(result, index, len(given))
                for index in range(len(given))
            ]

        return replica.meet("merge_call()", (args, kwargs), merged)

    def all_reduce(
        self, reduce_op: Any, value: Any, options: Any = None
    ) -> Any:
        """Returns sums or means over all that make the step.

        Args:
            reduce_op: A `tf.distribute.ReduceOp`, or its name.
            value: A nested structure of tensors.
            options: Has no effect.

        Returns:
            A structure like `value`.

        Raises:
            UnsupportedError: If workers would have to see each other's values,
                and do not.
        """
        exchange = StepTrace.current().exchange
        if exchange is None:
            require_one_replica(self.strategy, "all_reduce()")
            return super().all_reduce(reduce_op, value, options)
        if isinstance(reduce_op, str):
            reduce_op = tf.distribute.ReduceOp(reduce_op.upper())
        values = [
            each if isinstance(each, _NOT_DENSE) else tf.convert_to_tensor(each)
            for each in tf.nest.flatten(value)
        ]
        if not values:
            return value
        return tf.nest.pack_sequence_as(
            value, exchange.all_reduce(reduce_op, values)
        )

    def all_gather(self, value: Any, axis: Any, options: Any = None) -> Any:
        """Returns the values of all that make the step, one behind the other.

        Args:
            value: A nested structure of tensors.
            axis: The axis along which they are.
            options: Has no effect.

        Returns:
            A structure like `value`.

        Raises:
            UnsupportedError: If workers make the step together, or one of
                several runs a function that is no step.
        """
        exchange = StepTrace.current().exchange
        if exchange is None:
            require_one_replica(self.strategy, "all_gather()")
        else:
            exchange.all_gather()
        return super().all_gather(value, axis, options)


def require_one_replica(strategy: Any, what: str) -> None:
    """Refuses a reduction in a function that only one of several workers runs.

    A function that is traced without the coordinator may be for the chief. Who
    schedules it is told.

    Args:
        strategy: The strategy.
        what: The reduction.

    Raises:
        UnsupportedError: If the value of one worker would stand for all.
    """
    trace = StepTrace.current()
    is_shared = (
        isinstance(strategy.consistency, Sync)
        and len(strategy.worker_devices) > 1
    )
    # A ps updates with the gradients of all workers: Keras's optimizers may
    # still ask for their sum, as Nadam does.
    if not is_shared or trace.is_discarded or trace.only_on is not None:
        return
    if (
        strategy.extended.chief_runs.is_traced_for_workers
        or dispatch_context.current() is not None
    ):
        raise errors.UnsupportedError(
            "Workers see sums of their values only in a step that they make "
            "together, and a function that applies no gradients runs on one "
            "worker. Expected all_reduce() next to optimizer.apply(), in "
            "a function that strategy.run() calls, in a scheduled tf.function "
            "and outside of loops, conditions and functions inside of it; or "
            f"in the train_step of fit(). Received: {what} elsewhere, for "
            "example of a BatchNormalization with synchronized=True and "
            "training=True, in evaluation. Return the values, and add up the "
            "results of the functions."
        )
    trace.reduces_alone = True


def require_own_results(reduce_op: Any) -> None:
    """Refuses a reduction of results in a step that workers make together.

    Args:
        reduce_op: The operation.

    Raises:
        UnsupportedError: If the function that is being traced is one.
    """
    trace = StepTrace.current()
    if trace.global_step is not None:
        raise errors.UnsupportedError(
            "Workers that make a step together do not see each other's "
            "results. Expected strategy.reduce() of what coordinator.fetch() "
            f"returns. Received: strategy.reduce() with {reduce_op} in the "
            "scheduled function. Return the value, fetch it, and reduce it "
            "then."
        )
    if trace.exchange is not None:
        raise errors.UnsupportedError(
            "Workers that make a step together do not see each other's values "
            "before its end. Expected a step without a reduction over "
            f"replicas. Received: {reduce_op}, for example in a function for "
            "merge_call(). Leave it out, or train with "
            "consistency=tfps.Async()."
        )
