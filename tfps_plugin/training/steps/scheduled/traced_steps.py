"""Finds the synchronous step in a function that a program schedules."""

import contextlib
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_graphs
from tfps_plugin.strategy.chief_runs import NotAStepError
from tfps_plugin.strategy.consistency import Sync
from tfps_plugin.strategy.consistency import updates_at_once
from tfps_plugin.strategy.replicas.per_replica import PerReplica
from tfps_plugin.strategy.replicas.replica_context import require_one_replica
from tfps_plugin.training.steps.scheduled import numbered_functions
from tfps_plugin.training.steps.scheduled.group_calls import WorkerGroupCalls
from tfps_plugin.training.synchronous import global_step
from tfps_plugin.training.synchronous.global_step import GlobalStep
from tfps_plugin.variables.step_trace import StepTrace


class TracedSteps:
    """Steps in functions that a program schedules itself.

    A function has a step if `strategy.run` calls `optimizer.apply` in it. All
    workers run such a function; any other one runs on one worker.

    Threading: only the thread that traces uses it.
    """

    def __init__(self, strategy: Any) -> None:
        """Takes the strategy, which keeps this object."""
        self._strategy = weakref.ref(strategy)
        self._consistency = strategy.consistency

    def trace(self, function: Callable[[], Any], arguments: Any) -> Any:
        """Traces what `strategy.run` runs; see `ScheduledSteps`."""
        graph = tf.compat.v1.get_default_graph()
        trace = StepTrace.current()
        if (
            trace.exchange is not None
            or graph is not tensorflow_graphs.outermost_function(graph)
        ):
            return function()
        strategy: Any = self._strategy()
        if not isinstance(self._consistency, Sync):
            return function()
        step = GlobalStep(
            strategy.ps_devices,
            strategy.worker_capacity,
            self._consistency.backup_workers,
        )
        exchange = _Exchange(step)
        outputs = step.traced_if_it_applies(
            function, exchange, lambda: _num_examples(graph, arguments)
        )
        if exchange.has_pushed:
            if trace.global_step is not None:
                raise errors.UnsupportedError(
                    "A scheduled function has at most one synchronous step. "
                    "Expected one strategy.run() that applies gradients. "
                    "Received: a second one. Schedule a function for each."
                )
            trace.global_step = step
        elif exchange.reduction is not None:
            require_one_replica(strategy, exchange.reduction)
            raise NotAStepError
        elif exchange.has_assigned:
            raise NotAStepError
        return outputs

    def step_of(self, function: Any) -> GlobalStep | None:
        """Returns the step in a concrete function; see `ScheduledSteps`."""
        trace = StepTrace.of_graph(function.graph)
        if trace.applies_alone:
            is_sync = isinstance(self._consistency, Sync)
            expected = (
                "a tf.function, which the coordinator traces"
                if is_sync
                else "training by fit()"
            )
            advice = (
                "Schedule the tf.function itself"
                if is_sync
                else "Train by fit(), or with tfps.Async()"
            )
            raise errors.UnsupportedError(
                "A scheduled function applies gradients otherwise than the "
                "consistency asks, and was traced by the program. Expected "
                f"{expected}. Received: fn={function.name!r}, with "
                f"consistency=tfps.{self._consistency}. {advice}."
            )
        if trace.reduces_alone:
            raise errors.UnsupportedError(
                "A scheduled function reduces values over workers, and was "
                "traced by the program, so that each worker has its own value "
                "only. Expected a tf.function, which the coordinator traces. "
                f"Received: fn={function.name!r}, with "
                f"consistency=tfps.{self._consistency}. Schedule the "
                "tf.function itself."
            )
        step: GlobalStep | None = trace.global_step
        return step

    def for_workers(self, function: Any) -> Any:
        """Returns what workers run in place of it; see `ScheduledSteps`."""
        step = StepTrace.of_graph(function.graph).global_step
        if step is None or step.number is None:
            return function
        return numbered_functions.numbered(function, step.number)

    def for_chief(self, function: Any) -> list[Any]:
        """Returns what the chief runs beside a step; see `ScheduledSteps`."""
        step = StepTrace.of_graph(function.graph).global_step
        return [] if step is None else step.functions_of_chief

    def new_calls(self, coordinator: Any) -> WorkerGroupCalls:
        """Returns the calls of a coordinator; see `ScheduledSteps`."""
        return WorkerGroupCalls(coordinator)


def install(strategy: Any) -> None:
    """Looks at the scheduled functions of a strategy, if steps wait.

    Under `tfps.Sync()` they may have steps; otherwise, what applies gradients
    without waiting, or outside of a round of local steps, is refused.

    Args:
        strategy: The strategy that was just created.
    """
    if not updates_at_once(strategy.consistency):
        strategy.scheduled_steps = TracedSteps(strategy)


class _Exchange:
    """Passes the changes of a function on to a step.

    Without gradients the function is no step, and may assign and reduce what a
    step may not. So what a step refuses is raised only once gradients are
    applied.
    """

    reads_exactly = True

    def __init__(self, step: GlobalStep) -> None:
        self._step = step
        self._refusal: errors.UnsupportedError | None = None
        self.has_pushed = False
        self.has_assigned = False
        # The last reduction over workers.
        self.reduction: str | None = None

    def push(
        self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> None:
        if self._refusal is not None:
            raise self._refusal
        self._step.push(optimizer, gradients, variables)
        self.has_pushed = True

    def assign(self, variable: Any, method: str, value: Any) -> None:
        self.has_assigned = True
        with self._refusing():
            self._step.assign(variable, method, value)

    def all_reduce(
        self, reduce_op: Any, values: Sequence[Any]
    ) -> list[tf.Tensor]:
        self.reduction = "all_reduce()"
        with self._refusing():
            return self._step.all_reduce(reduce_op, values)
        # The function is no step, or is refused once it turns out to be one.
        return list(values)

    def all_gather(self) -> None:
        self.reduction = "all_gather()"
        with self._refusing():
            self._step.all_gather()

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except errors.UnsupportedError as error:
            if self.has_pushed:
                raise
            self._refusal = self._refusal or error


def _num_examples(graph: tf.Graph, arguments: Any) -> tf.Tensor:
    """Returns the number of examples of the batch that a function trains on.

    Raises:
        UnsupportedError: If the function does not show it.
    """
    leaves = tf.nest.flatten(arguments)
    for leaf in leaves:
        if isinstance(leaf, PerReplica) and leaf.num_examples is not None:
            return tf.cast(tf.add_n(list(leaf.num_examples)), tf.float32)
    data = [
        leaf
        for leaf in leaves
        if isinstance(leaf, tf.Tensor | tf.RaggedTensor | tf.SparseTensor)
    ]
    if not any(map(_has_rows, data)):
        reads = [
            operation.outputs
            for operation in graph.get_operations()
            if tensorflow_graphs.is_read_of_input(operation)
        ]
        if len(reads) == 1:
            # Sparse and ragged parts come as variants, of unknown rows.
            data = [each for each in reads[0] if each.dtype != tf.variant]
    if not any(map(_has_rows, data)):
        raise errors.UnsupportedError(
            "A synchronous step is the mean over the examples of all workers, "
            "so the number of them has to be seen. Expected the batch, or one "
            "iterator, among the arguments of strategy.run(). Received: args="
            f"{arguments!r}. Read the batch outside, and pass it to "
            "strategy.run()."
        )
    return global_step.num_examples(data)


def _has_rows(data: Any) -> bool:
    return not isinstance(data, tf.Tensor) or data.shape.rank != 0
