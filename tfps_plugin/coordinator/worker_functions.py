"""Functions for workers: traced in their scope, and prepared for lanes."""

import contextlib
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_captures
from tfps_plugin._compat.graph import tensorflow_graphs
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator import pinned_tasks
from tfps_plugin.coordinator.closures import arguments
from tfps_plugin.coordinator.lanes import first_calls
from tfps_plugin.coordinator.scheduled_steps import ScheduledSteps
from tfps_plugin.inputs import captured_inputs
from tfps_plugin.strategy.chief_runs import NotAStepError
from tfps_plugin.variables.per_worker import worker_seeds
from tfps_plugin.variables.states import copies


class WorkerFunctions:
    """Traces and prepares the functions that workers of a strategy run.

    Threading: any thread.
    """

    def __init__(
        self, strategy: Any, scheduled_steps: ScheduledSteps | None
    ) -> None:
        """Begins without functions.

        Args:
            strategy: A `tfps.ParameterServerStrategy`.
            scheduled_steps: Finds synchronous steps in functions; None: there
                are none.
        """
        self._strategy = strategy
        self._scheduled_steps = scheduled_steps
        # The user's functions whose metric states have merge rules.
        self._settled: weakref.WeakSet[Any] = weakref.WeakSet()
        # The workers on which they place operations.
        self._pinned: weakref.WeakKeyDictionary[Any, frozenset[int]] = (
            weakref.WeakKeyDictionary()
        )

    @contextlib.contextmanager
    def tracing_scope(self) -> Iterator[None]:
        """Context in which functions for workers are traced, under no device.

        Exceptions of the functions pass unchanged.
        """
        runs = self._strategy.extended.chief_runs
        with (
            tensorflow_execution.unwrapped_errors(),
            self._strategy.scope(),
            runs.traced_for_workers(),
        ):
            worker_seeds.claim_global_seeds(self._strategy)
            with tf.device(None):
                yield

    def prepare(self, function: Any, owner: Any = None) -> Any:
        """Prepares a concrete function for calls on workers.

        Args:
            function: A concrete function, traced under no device in
                `tracing_scope`.
            owner: The object whose steps it runs, such as a model; see
                `ParameterServerStrategy.explain`.

        Returns:
            A callable of the same arguments, for lanes. It does the same with
            fewer messages. Its attribute `pinned_workers` has the indices of
            the workers on which it places operations.

        Raises:
            InputError: If it captures a dataset, iterator or lookup table
                that cannot leave the chief.
            PlacementError: If it names a task that the cluster does not have.
            UnsupportedError: If it has no owner and assigns a metric state
                that no rule can merge.
        """
        if function not in self._settled:
            captured_inputs.refuse_resources(function)
            if owner is None:
                copies.settle_or_refuse(function.graph)
            self._pinned[function] = pinned_tasks.workers_of(
                tensorflow_graphs.devices_within(function.graph),
                self._tasks(),
                function.graph.name,
            )
            # The same function may be scheduled many thousands of times.
            self._settled.add(function)
        return first_calls.exclusive(
            self._strategy.fused(function, owner),
            tensorflow_captures.parameter_servers(function.graph),
            self._pinned[function],
        )

    def _tasks(self) -> list[Task]:
        """Returns the tasks on which functions may place operations."""
        session = self._strategy.session
        chief = session.cluster.chief
        members = [*session.workers, *session.parameter_servers]
        return members if chief is None else [chief, *members]

    def bind(
        self, fn: Callable[..., Any], args: Any, kwargs: dict[str, Any] | None
    ) -> tuple[arguments.Call, Any]:
        """Returns a call of a scheduled function, and the step in it.

        Args:
            fn: A `tf.function`, a concrete function or a Python callable.
            args: Its positional arguments; see `ClusterCoordinator.schedule`.
            kwargs: Its keyword arguments, likewise.

        Returns:
            The call, and what `ScheduledSteps.step_of` returns; None if the
            function has no synchronous step.
        """
        steps = self._scheduled_steps
        if steps is None:
            return self._bound(fn, args, kwargs), None
        for_workers = steps.for_workers
        try:
            call = arguments.bind(
                fn,
                args,
                kwargs,
                self._scope_of_steps,
                lambda concrete: self.prepare(for_workers(concrete)),
            )
        except NotAStepError:
            # It only assigns variables, and does that by itself.
            call = self._bound(fn, args, kwargs)
        concrete = call.concrete
        return call, None if concrete is None else steps.step_of(concrete)

    def _bound(
        self, fn: Callable[..., Any], args: Any, kwargs: dict[str, Any] | None
    ) -> arguments.Call:
        return arguments.bind(
            fn, args, kwargs, self.tracing_scope, self.prepare
        )

    @contextlib.contextmanager
    def _scope_of_steps(self) -> Iterator[None]:
        """Context in which functions are traced that may have a step."""
        runs = self._strategy.extended.chief_runs
        with self.tracing_scope(), runs.looking_for_steps():
            yield
