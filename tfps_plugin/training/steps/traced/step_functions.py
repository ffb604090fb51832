"""Many steps as one function of a worker."""

import logging
import time
import weakref
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat.graph import tensorflow_graphs as graphs_compat
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.lanes import first_calls
from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.strategy.consistency import BoundedStaleness
from tfps_plugin.strategy.consistency import Sync
from tfps_plugin.strategy.consistency import local_steps_of
from tfps_plugin.strategy.replicas.device_copies import DeviceCopies
from tfps_plugin.training import step_build
from tfps_plugin.training.bounded.gate import Gate
from tfps_plugin.training.bounded.keeper import Keeper
from tfps_plugin.training.local.local_rounds import LocalRounds
from tfps_plugin.training.optimizers.automatic import automatic_updates
from tfps_plugin.training.optimizers.automatic.update_costs import StepTimes
from tfps_plugin.training.steps.metrics import staleness_report
from tfps_plugin.training.steps.metrics.counted_sums import Counted
from tfps_plugin.training.steps.metrics.counted_sums import CountedSums
from tfps_plugin.training.steps.metrics.lane_sums import LaneSums
from tfps_plugin.training.steps.metrics.step_states import StepStates
from tfps_plugin.training.steps.traced import batches_ahead
from tfps_plugin.training.steps.traced import replica_steps
from tfps_plugin.training.steps.traced import rounds
from tfps_plugin.training.steps.traced.step_loops import NumberedOutputs
from tfps_plugin.training.steps.traced.step_loops import StepLoops
from tfps_plugin.training.steps.traced.step_loops import StepsOutput
from tfps_plugin.training.steps.tuning.calls_in_flight import CallsInFlight
from tfps_plugin.training.steps.tuning.loss_course import LossCourse
from tfps_plugin.training.steps.tuning.loss_reports import LossReports
from tfps_plugin.training.steps.tuning.packing import Pace
from tfps_plugin.training.synchronous import losses
from tfps_plugin.training.synchronous import together
from tfps_plugin.training.synchronous.global_step import GlobalStep
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.per_worker.worker_resident import WorkerResident
from tfps_plugin.variables.step_trace import StepTrace

_logger = logging.getLogger("tfps_plugin.training")


class Rounds(NamedTuple):
    """A function whose loop makes several steps in each round.

    Attributes:
        num_steps: Number of steps in a round.
        function: Like a result of `StepFunctions.on_iterator`, but runs as many
            whole rounds as fit into the number of steps.
    """

    num_steps: int
    function: Callable[..., StepsOutput]


class Gated(NamedTuple):
    """Objects by which workers and ps keep steps from running far ahead.

    Attributes:
        gate: The queues of the step.
        keepers: The keeper of each ps.
        max_staleness: The bound.
    """

    gate: Gate
    keepers: list[Keeper]
    max_staleness: int


class StepFunctions:
    """A model's step, packed into loops over the batches of one worker.

    Attributes:
        pace: Number of steps to pack, by the time that they take.
        calls_in_flight: Number of calls that a worker runs at a time, by the
            resulting speed.
        loss_reports: Derives recent losses from the reports of steps.
        states: The needs of the step's states.
        counts_exactly: Whether each call returns its own part of metrics.
        pinned_workers: Indices of the workers on which steps place operations.
        traced_for_layout: The `layout_version` for which functions are traced.

    Threading: only the thread that runs `fit` uses it; any thread may call the
    functions that it returns.
    """

    def __init__(
        self,
        model: keras.Model,
        step: Callable[[Any], Any],
        coordinator: ClusterCoordinator,
        *,
        counts_exactly: bool = False,
    ) -> None:
        """Prepares; traces nothing yet.

        Args:
            model: The model; its strategy runs the step.
            step: `train_step` or `test_step`, of one batch.
            coordinator: The coordinator in whose scope functions are traced.
            counts_exactly: Whether each call returns its own part of metrics;
                else lanes accumulate metrics.
        """
        step = keras_compat.without_optionals(model, step)
        self._model = model
        self._coordinator = coordinator
        self.counts_exactly = counts_exactly
        self.pinned_workers: frozenset[int] = frozenset()
        self._counted_sums = CountedSums([])
        # Results that calls return must not be counted a second time.
        self._lane_sums = None if counts_exactly else LaneSums(model)
        self.states = StepStates(model)
        self._choice = 0
        self._step_times = StepTimes()
        self.pace = Pace(coordinator.num_lanes, model.name)
        # Steps that count exactly do not train, so weights do not go stale.
        trains = not counts_exactly
        at_first = (
            coordinator.in_flight_limits.least
            if trains
            else coordinator.in_flight_limits.at_first
        )
        self._at_first = at_first
        self._lanes_at_first = at_first * coordinator.num_workers
        self.calls_in_flight = CallsInFlight(
            coordinator.num_workers,
            at_first,
            coordinator.in_flight_limits.most,
            coordinator.in_flight_limits.least,
            model.name,
            LossCourse() if trains else None,
        )
        self.loss_reports = LossReports(model)
        # Per lane, because another lane's tensor may still be in transit.
        self._numbers: WorkerResident[dict[int, tf.Tensor]] = WorkerResident(
            lambda context: {}, per_lane=True
        )
        # By the graph of a step.
        self._global_steps: weakref.WeakKeyDictionary[tf.Graph, GlobalStep] = (
            weakref.WeakKeyDictionary()
        )
        self._gates: weakref.WeakKeyDictionary[tf.Graph, Gate] = (
            weakref.WeakKeyDictionary()
        )
        # The step in each function that `on_iterator` and `on_group` return.
        self._steps_in: weakref.WeakKeyDictionary[Any, Any] = (
            weakref.WeakKeyDictionary()
        )
        self._on_iterator: dict[str, Callable[..., StepsOutput]] = {}
        self._in_rounds: dict[str, Rounds | None] = {}
        self._on_group: dict[str, Callable[..., StepsOutput]] = {}

        def step_on(data: Any, run: Callable[[Any], Any]) -> Any:
            StepTrace.current().chief_waits = True
            # Parts of a step need no data, such as counting it: where the
            # input has run dry, they must not happen either.
            parts = tf.nest.flatten(
                batches_ahead.batch_of(data), expand_composites=True
            )
            with tf.control_dependencies(
                [part for part in parts if part is not None]
            ):
                outputs = run(data)
            return tf.nest.map_structure(tf.convert_to_tensor, outputs)

        @tf.autograph.experimental.do_not_convert
        def one_step(data: Any) -> Any:
            return step_on(data, self._run_step)

        self._user_step = step
        self._step = one_step
        self._local_step = lambda data: step_on(data, self._run_user_step)
        self._trace_anew()

    @property
    def work(self) -> str:
        """Description of the steps, for people."""
        method = "evaluate" if self.counts_exactly else "fit"
        return f"{method} of {self._model.name}"

    @property
    def is_synchronous(self) -> bool:
        """True if workers make a step together."""
        consistency = self._model.distribute_strategy.consistency
        return not self.counts_exactly and isinstance(consistency, Sync)

    @property
    def is_bounded(self) -> bool:
        """True if a worker waits for those that are far behind."""
        consistency = self._model.distribute_strategy.consistency
        return not self.counts_exactly and isinstance(
            consistency, BoundedStaleness
        )

    @property
    def layout_version(self) -> int:
        """See `ParameterServerStrategy.layout_version`."""
        version: int = self._model.distribute_strategy.layout_version
        return version

    @property
    def local_steps(self) -> int:
        """Number of steps that a worker makes on weights of its own."""
        if self.counts_exactly:
            return 1  # `evaluate` trains nothing
        return local_steps_of(self._model.distribute_strategy.consistency)

    def _run_user_step(self, data: Any) -> Any:
        """Runs the model's step on a batch, while the step is traced."""
        strategy = self._model.distribute_strategy
        if len(strategy.replica_devices) > 1:
            losses.require_means(self._model)
        return replica_steps.run(strategy, self._user_step, data)

    def _run_step(self, data: Any) -> Any:
        """Runs the model's step as the consistency asks, likewise."""
        strategy = self._model.distribute_strategy
        run = self._run_user_step
        if self.local_steps > 1:
            trace = StepTrace.current()
            trace.updates = []
            trace.is_in_round = True
            return run(data)
        if self.is_bounded:
            gate = Gate(strategy.ps_devices, strategy.worker_capacity)
            self._gates[tf.compat.v1.get_default_graph()] = gate
            return gate.traced(run, data)
        if not self.is_synchronous:
            return run(data)
        losses.require_means(self._model)
        step = GlobalStep(
            strategy.ps_devices,
            strategy.worker_capacity,
            strategy.consistency.backup_workers,
        )
        self._global_steps[tf.compat.v1.get_default_graph()] = step
        outputs = step.traced(run, data)
        if step.number is None:
            return outputs
        return NumberedOutputs(step.number, outputs)

    def synchronous(self, function: Any, batch_spec: Any) -> together.Together:
        """Returns what workers and ps need to make a step together.

        Args:
            function: A result of `on_iterator` or `on_group`.
            batch_spec: Type of a batch, as the step sees it.
        """
        with self._coordinator.functions.tracing_scope():
            concrete = self._steps_in[function].get_concrete_function(
                self._argument_spec(batch_spec)
            )
            return together.make_together(
                self._model.distribute_strategy,
                self._global_steps[concrete.graph],
                self._model,
            )

    def gated(self, function: Any, batch_spec: Any) -> Gated:
        """Returns what workers and ps need to keep to bounded staleness.

        Args:
            function: A result of `on_iterator` or `on_group`.
            batch_spec: Type of a batch, as the step sees it.
        """
        with self._coordinator.functions.tracing_scope():
            concrete = self._steps_in[function].get_concrete_function(
                self._argument_spec(batch_spec)
            )
            gate = self._gates[concrete.graph]
            if gate.gated is None:
                gate.gated = Gated(
                    gate,
                    [Keeper(gate, ps) for ps in range(len(gate.devices))],
                    self._model.distribute_strategy.consistency.max_staleness,
                )
            gated: Gated = gate.gated
            return gated

    def _trace_anew(self) -> None:
        """Makes the step be retraced when it is next needed."""
        self.traced_for_layout = self.layout_version
        self._capacity = self._model.distribute_strategy.worker_capacity
        self._one_step = tf.function(self._step)
        if self.counts_exactly:
            self._counted_sums = CountedSums.of_metrics(self._model)
        self._loops = self._new_loops()

    def _new_loops(self) -> StepLoops:
        return StepLoops(
            self._one_step,
            self._counted_sums,
            self._local_rounds(),
            self._model.distribute_strategy.copy_devices,
        )

    def _argument_spec(self, batch_spec: Any) -> Any:
        """Returns the type of the argument of the step, by that of a batch."""
        strategy = self._model.distribute_strategy
        return DeviceCopies(batch_spec, strategy.copy_devices).step_spec

    def _local_rounds(self) -> LocalRounds | None:
        if self.local_steps == 1:
            return None
        return LocalRounds(
            self._one_step,
            self._local_step,
            self.local_steps,
            lambda: [variable.value for variable in self._model.variables],
        )

    def _forget_outdated(self) -> None:
        """Drops functions that would now be traced differently."""
        lacks_room = (
            self.is_synchronous or self.is_bounded
        ) and self._capacity <= max(self._coordinator.worker_indices)
        if lacks_room and self._on_iterator | self._on_group:
            _logger.info(
                "There are more workers than %s was traced for: its steps are "
                "traced again.",
                self._model.name,
            )
        has_moved = self.traced_for_layout != self.layout_version
        if has_moved:
            self.pinned_workers = frozenset()
            # Each lane's first call of the next trace takes longer.
            self.pace.pass_over_first_calls(self._coordinator.num_lanes)
            self.calls_in_flight.measure_again(time.monotonic())
        if (
            lacks_room
            or has_moved
            or self.states.are_outdated
            or self._choice != self._choice_of_now()
        ):
            self._on_iterator.clear()
            self._in_rounds.clear()
            self._on_group.clear()

    def choose_updates(self) -> bool:
        """Lets optimizers choose table updates again if the step time changed.

        Returns:
            Whether older functions are outdated because they update tables in
            another way.
        """
        # Evaluation updates nothing.
        if self.counts_exactly:
            return False
        seconds = self._seconds_between_updates()
        if seconds is None or not self._step_times.differs(seconds):
            return False
        automatic_updates.settle(step_build.optimizers_of(self._model), seconds)
        if self._choice == self._choice_of_now():
            return False
        # Each lane's first call of the next trace takes longer.
        self.pace.pass_over_first_calls(self._coordinator.num_lanes)
        self.calls_in_flight.measure_again(time.monotonic())
        return True

    def workers_changed(self) -> None:
        """Measures calls again if the number of workers has changed."""
        number = self._coordinator.num_workers
        if self.calls_in_flight.set_workers(number, time.monotonic()):
            self._lanes_at_first = self._at_first * number
            self.pace.pass_over_first_calls(self._coordinator.num_lanes)

    def _seconds_between_updates(self) -> float | None:
        """Returns the seconds between two updates of a ps; None: unknown."""
        seconds = self.pace.seconds_of_a_step
        speed = self.calls_in_flight.raised_speed
        if seconds is None or speed is None:
            between = seconds and seconds / self._lanes_at_first
        else:
            between = 1 / speed
        return between and between * self.local_steps

    def _choice_of_now(self) -> int:
        """Returns a version of the choice of table updates."""
        return automatic_updates.version(step_build.optimizers_of(self._model))

    def settle_states(self, batch_spec: Any) -> None:
        """Finds the rule of every state before loops are built from the step.

        Args:
            batch_spec: Type of a batch, as the step sees it.
        """

        def trace() -> tf.Graph:
            self._trace_anew()
            return self._one_step.get_concrete_function(
                self._argument_spec(batch_spec)
            ).graph

        with self._coordinator.functions.tracing_scope():
            self.states.settle(trace)
            self._choice = self._choice_of_now()
            # Now that rules are known, so are the states that calls count.
            if self.counts_exactly:
                self._counted_sums = CountedSums.of_metrics(self._model)
                self._loops = self._new_loops()

    def on_iterator(self, element_spec: Any) -> Callable[..., StepsOutput]:
        """Returns a function of a worker's iterator and a number of steps.

        It runs that many steps, or as many as the iterator has batches for.
        """
        key = repr(element_spec)
        self._forget_outdated()
        if key not in self._on_iterator:
            self.settle_states(element_spec)
            with self._coordinator.functions.tracing_scope():
                self._loops.prepare_iterator(element_spec)
            self._on_iterator[key] = self._traced(
                self._loops.steps_over_iterator,
                tf.data.IteratorSpec(element_spec),
                tf.TensorSpec([], tf.int32),
            )
            self._steps_in[self._on_iterator[key]] = self._one_step
            self._tell_rehearsal(element_spec)
        return self._on_iterator[key]

    def known_rounds(self, element_spec: Any) -> Rounds | None:
        """Returns the earlier result of `in_rounds`, if there is one."""
        return self._in_rounds.get(repr(element_spec))

    def in_rounds(self, element_spec: Any) -> Rounds | None:
        """Like `on_iterator`, for infinite iterators.

        Returns:
            The function; None if larger rounds do not pay, or would change the
            results.
        """
        key = repr(element_spec)
        if key not in self._in_rounds:
            self._in_rounds[key] = self._traced_in_rounds(element_spec)
        return self._in_rounds[key]

    def _traced_in_rounds(self, element_spec: Any) -> Rounds | None:
        if (
            not self._model.distribute_strategy.communication.fusion
            or self.local_steps > 1
        ):
            return None
        # The trace of `on_iterator`.
        with self._coordinator.functions.tracing_scope():
            step = self._one_step.get_concrete_function(
                self._argument_spec(element_spec)
            )
        operations = list(graphs_compat.operations_within(step.graph))
        if any(map(graphs_compat.draws_from_a_seed, operations)):
            return None
        steps_of_a_round = rounds.steps_of_a_round(len(operations))
        if steps_of_a_round == 1:
            return None
        _logger.info(
            "Each round of the loop of %s makes %d steps from now on, which "
            "share messages.",
            self._model.name,
            steps_of_a_round,
        )

        def many_in_rounds(iterator: Any, num_steps: tf.Tensor) -> StepsOutput:
            return self._loops.rounds_over_iterator(
                steps_of_a_round, iterator, num_steps
            )

        # The name that `strategy.explain` shows.
        many_in_rounds.__name__ = f"rounds_of_{steps_of_a_round}_steps"
        function = self._traced(
            many_in_rounds,
            tf.data.IteratorSpec(element_spec),
            tf.TensorSpec([], tf.int32),
        )
        # Each lane's first call of the function takes longer.
        self.pace.pass_over_first_calls(self._coordinator.num_lanes)
        self.calls_in_flight.measure_again(time.monotonic())
        return Rounds(steps_of_a_round, function)

    def on_group(self, codec: BatchCodec) -> Callable[..., StepsOutput]:
        """Returns a function of a group of batches, strings `(K, C)`."""
        key = repr(codec.element_spec)
        self._forget_outdated()
        if key not in self._on_group:
            self.settle_states(codec.decoded_spec)
            with self._coordinator.functions.tracing_scope():
                self._loops.prepare_group(codec)
            self._on_group[key] = self._traced(
                lambda group_KC: self._loops.steps_over_group(codec, group_KC),
                tf.TensorSpec([None, codec.num_parts], tf.string),
            )
            self._steps_in[self._on_group[key]] = self._one_step
            self._tell_rehearsal(codec.decoded_spec)
        return self._on_group[key]

    def _tell_rehearsal(self, batch_spec: Any) -> None:
        """Ends a rehearsal, if there is one: the step is known by now."""
        rehearsal = self._model.distribute_strategy.rehearsal
        if rehearsal is None:
            return
        with self._coordinator.functions.tracing_scope():
            step = self._one_step.get_concrete_function(
                self._argument_spec(batch_spec)
            )
        rehearsal.end(self._model, step)

    def number(self, value: int) -> tf.Tensor:
        """Returns a number as a tensor on the worker of the calling lane."""
        numbers = self._numbers.get()
        if value not in numbers:
            # tf.constant on the worker would block the whole program; an
            # operation lets other threads run.
            with tf.device(None), tf.device(graph_checks.CPU):
                local = tf.constant(np.asarray(value, np.int32))
            numbers[value] = tf.identity(local)
        return numbers[value]

    def require_workers(self) -> None:
        """Keeps the workers that steps need until the closure has ended.

        Raises:
            WorkerAwayError: If one is away or leaves; the closure runs later.
            BaseException: If nobody waits for it any more.
        """
        first_calls.require(self.pinned_workers)

    def release_workers(self) -> None:
        """Lets the workers that steps need leave, before a closure waits."""
        first_calls.release()

    def commit(self, counted: Counted) -> None:
        """Adds the results of calls to the chief's metrics; no call may run.

        Args:
            counted: Fetched and merged results; may be empty.
        """
        if counted:
            self._counted_sums.commit(counted)

    def collect(self) -> None:
        """Fetches the metric states of lanes; no call may run."""
        if self._lane_sums is not None:
            self._lane_sums.collect()

    def report_staleness(self) -> None:
        """Reports the staleness of updates, if steps train; no call may run."""
        if not self.counts_exactly:
            staleness_report.report(self._model, self._coordinator.counters)

    def _traced(
        self, function: Callable[..., Any], *specs: Any
    ) -> Callable[..., Any]:
        # On the caller's thread and under no device: one trace for all.
        with self._coordinator.functions.tracing_scope():
            concrete = tf.function(
                tf.autograph.experimental.do_not_convert(function)
            ).get_concrete_function(*specs)
        prepared = self._coordinator.functions.prepare(concrete, self._model)
        self.pinned_workers |= prepared.pinned_workers
        return prepared
