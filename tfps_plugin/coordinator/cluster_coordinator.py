"""Cluster coordinator: schedules functions, and fetches their results."""

import atexit
import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import patch_table
from tfps_plugin._compat import patches
from tfps_plugin.cluster.chief.connection import Connection
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.coordinator import caller_checks
from tfps_plugin.coordinator.closures.closure import Closure
from tfps_plugin.coordinator.closures.closure_queue import ClosureQueue
from tfps_plugin.coordinator.closures.kept_results import KeptResults
from tfps_plugin.coordinator.closures.remote_value import RemoteValue
from tfps_plugin.coordinator.closures.remote_value import fetch_all
from tfps_plugin.coordinator.elastic.elastic_ps import ElasticParameterServers
from tfps_plugin.coordinator.elastic.elastic_workers import ElasticWorkers
from tfps_plugin.coordinator.elastic.follower import Follower
from tfps_plugin.coordinator.elastic.safe_points import SafePoints
from tfps_plugin.coordinator.elastic.uses import Use
from tfps_plugin.coordinator.in_flight_limits import InFlightLimits
from tfps_plugin.coordinator.mapping.map_and_reduce import MapAndReduce
from tfps_plugin.coordinator.members.presence import ObservedMembers
from tfps_plugin.coordinator.scheduled_steps import GroupCalls
from tfps_plugin.coordinator.scheduled_steps import ScheduledSteps
from tfps_plugin.coordinator.session_protocol import SessionLike
from tfps_plugin.coordinator.stragglers.rated_workers import RatedWorkers
from tfps_plugin.coordinator.worker_functions import WorkerFunctions
from tfps_plugin.coordinator.worker_pool import PoolOptions
from tfps_plugin.coordinator.worker_pool import WorkerPool
from tfps_plugin.inputs.worker_dataset import WorkerDataset
from tfps_plugin.inputs.worker_dataset import WorkerDatasets
from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.monitoring.events import Events
from tfps_plugin.variables.chief import steps_in_flight
from tfps_plugin.variables.chief.recovery_gate import RecoveryGate
from tfps_plugin.variables.per_worker.worker_resident import Residents

_NO_WORKER_TIMEOUT_SECONDS = 600.0
_PATIENCE_SECONDS = 30.0
_BACKGROUND_TIMEOUT_SECONDS = 10.0
_BACKGROUND_END_TIMEOUT_SECONDS = 5.0
# How long to wait for the end of steps whose workers have ended.
_GROUP_CALLS_TIMEOUT_SECONDS = 10.0
# A function that crashes its worker must not take all workers with it.
_MAX_WORKERS_LOST = 4

_creation_lock = threading.Lock()


class ClusterCoordinator(
    MapAndReduce,
    ElasticWorkers,
    ElasticParameterServers,
    RatedWorkers,
    ObservedMembers,
):
    """Schedules functions on the workers of a cluster.

    Has the semantics of `tf.distribute.coordinator.ClusterCoordinator`, for
    custom training loops. `model.fit` needs no coordinator of your own.

        coordinator = tfps.ClusterCoordinator(strategy)
        dataset = coordinator.create_per_worker_dataset(dataset_fn)
        iterator = iter(dataset)
        for _ in range(steps):
            loss = coordinator.schedule(train_step, args=(iterator,))
        coordinator.join()
        print(loss.fetch())

    Each scheduled function runs at least once, on any worker. Several run at
    the same time, in no particular order. If a worker dies, its functions run
    again on the others; the worker takes part again when it is back. If a
    function itself raises, the next `schedule`, `join`, `done` or `fetch`
    raises its exception, once. All other functions of that moment are
    cancelled, also those that run, and the coordinator can be used again.
    `schedule_on` instead runs a function on one given worker, at most once.

    A strategy has one coordinator: a second call returns the same object.
    `close` ends its threads at once. Otherwise they end within seconds after
    the strategy and the coordinator were garbage collected.

    Threading: all methods are safe from several threads, but not from inside
    a scheduled function. Ctrl-C interrupts all waits.

    Attributes:
        strategy: The strategy whose workers run the functions.
        counters: Counters, such as `counters.value("workers_lost")`.
        events: Events, such as the loss of a worker; `events.subscribe`.
        in_flight_limits: Number of functions that each worker can run at a
            time.
        functions: Traces and prepares functions for workers.
    """

    # Set up in __new__, not in __init__, which Python would run again on the
    # coordinator that the strategy already has.

    strategy: tf.distribute.Strategy
    counters: Counters
    events: Events
    in_flight_limits: InFlightLimits
    functions: WorkerFunctions
    _pool: WorkerPool
    _safe_points: SafePoints
    _kept: KeptResults
    _closed: bool
    _background: list[Any]
    _group_calls: GroupCalls | None
    _registrations: contextlib.ExitStack

    def __new__(
        cls,
        strategy: Any,
        *,
        no_worker_timeout_seconds: float = _NO_WORKER_TIMEOUT_SECONDS,
        patience_seconds: float = _PATIENCE_SECONDS,
        max_workers_lost_per_closure: int | None = _MAX_WORKERS_LOST,
    ) -> "ClusterCoordinator":
        """Returns the strategy's coordinator; the first call creates it.

        Only the call that creates the coordinator sets the options.

        Args:
            strategy: A `tfps.ParameterServerStrategy`.
            no_worker_timeout_seconds: How long scheduled functions may wait,
                in seconds, while every worker is lost. After that
                `WorkerLostError` is raised.
            patience_seconds: How long a function may run, in seconds, before
                the tasks that it may wait for are probed. Only tasks that do
                not answer are given up; functions themselves may take any
                time.
            max_workers_lost_per_closure: Number of workers in a row that may
                be lost while they run the same function. Then that function
                counts as the cause and raises `ClosureLosesWorkersError`.
                None: no limit.

        Returns:
            The coordinator; the same object until it is closed.

        Raises:
            TypeError: If `strategy` is not a `tfps.ParameterServerStrategy`.
            StrategySupersededError: If a newer strategy has replaced it.
        """
        session = getattr(strategy, "session", None)
        if not isinstance(session, SessionLike):
            raise TypeError(
                "A ClusterCoordinator cannot work with this strategy; "
                "expected a tfps.ParameterServerStrategy. Received: "
                f"strategy={strategy!r}. If it is TensorFlow's own, replace "
                "tf.distribute.experimental. by tfps. where it is created."
            )
        with _creation_lock:
            existing = getattr(strategy, "_cluster_coordinator", None)
            if existing is not None and not existing._closed:
                coordinator: ClusterCoordinator = existing
                return coordinator
            session.connection.require()
            coordinator = super().__new__(cls)
            coordinator._set_up(
                strategy,
                session,
                no_worker_timeout_seconds,
                patience_seconds,
                max_workers_lost_per_closure,
            )
            strategy._cluster_coordinator = coordinator
            return coordinator

    def _set_up(
        self,
        strategy: Any,
        session: SessionLike,
        no_worker_timeout_seconds: float,
        patience_seconds: float,
        max_workers_lost: int | None,
    ) -> None:
        self.strategy = strategy
        self.counters = Counters()
        self.events = Events()
        self.in_flight_limits = InFlightLimits.choose(
            strategy.scheduling.closures_in_flight,
            strategy.scheduling.prefetch_embeddings,
        )
        self._connection = session.connection
        self._closed = False
        steps: ScheduledSteps | None = getattr(
            strategy, "scheduled_steps", None
        )
        self.functions = WorkerFunctions(strategy, steps)
        self._group_calls = None if steps is None else steps.new_calls(self)
        # Everything that knows of the coordinator, until it ends.
        self._registrations = contextlib.ExitStack()
        self._background = list(getattr(strategy, "background_work", ()))
        if getattr(strategy, "elastic", False):
            self._background.append(Follower())
        patches.apply(patch_table.CONNECTION)
        restorer = getattr(strategy, "ps_restorer", None)
        reference = weakref.ref(self)
        self._kept = KeptResults()
        self._pool = WorkerPool(
            session,
            self.counters,
            self.events,
            PoolOptions(
                no_worker_timeout_seconds=no_worker_timeout_seconds,
                patience_seconds=patience_seconds,
                max_workers_lost=max_workers_lost,
                in_flight=self.in_flight_limits,
                restorer=restorer,
                ps_recovery_timeout_seconds=0.0
                if restorer is None
                else strategy.recovery.timeout_seconds,
                slow_worker_fraction=strategy.scheduling.slow_worker_fraction,
            ),
            holdings=_holdings(strategy, session),
            forget_worker=self._forget_worker(session, self._kept),
            release_worker=self._release_worker(session, self._kept),
            # A program that creates many strategies need not close each.
            is_wanted=lambda: reference() is not None,
            on_unwanted=_leave(self._registrations, self._background),
        )
        self._raise_pending = self._pool.queue.raise_error_at_once
        self._safe_points = SafePoints(
            functools.partial(_drain, self._pool.queue, self._group_calls),
            self._pool.queue.raise_error,
            functools.partial(_is_over, weakref.ref(self), self._connection),
        )
        self._pool.start()
        self._register()
        for work in self._background:
            work.start(self)

    @staticmethod
    def _forget_worker(
        session: SessionLike, kept: KeptResults
    ) -> Callable[[int], None]:
        """Returns what drops what a lost worker had; not the coordinator."""
        residents = session.connection.part(Residents)

        def forget(worker_index: int) -> None:
            kept.forget(worker_index)
            residents.forget_worker(worker_index)

        return forget

    @staticmethod
    def _release_worker(
        session: SessionLike, kept: KeptResults
    ) -> Callable[[int], None]:
        """Returns what takes over what a worker has; not the coordinator."""
        residents = session.connection.part(Residents)

        def release(worker_index: int) -> None:
            # It changes nothing that steps see. In `fit`, some may wait until
            # the worker has left, which they name.
            with steps_in_flight.finishing(None):
                kept.bring_home(worker_index)
                residents.release_worker(worker_index)

        return release

    def _register(self) -> None:
        """Registers with everything that calls the coordinator.

        What is registered does not keep the coordinator alive.
        """
        reference = weakref.ref(self)

        def await_recovery() -> bool:
            coordinator = reference()
            return (
                coordinator is not None
                and coordinator._pool.examiner.await_recovery()
            )

        def end(error: errors.StrategySupersededError) -> bool:
            coordinator = reference()
            return coordinator is None or coordinator._end(error)

        def close_at_exit() -> None:
            coordinator = reference()
            if coordinator is not None:
                coordinator.close()

        self._registrations.callback(
            self._connection.part(RecoveryGate).register(await_recovery)
        )
        self._registrations.callback(self._connection.on_end(end))
        # Python's exit must not unload TensorFlow while threads use it.
        # Registered after the session's own end, this runs before it.
        atexit.register(close_at_exit)
        self._registrations.callback(atexit.unregister, close_at_exit)

    @property
    def is_recovering(self) -> bool:
        """True while a lost parameter server is being recovered."""
        return self._pool.membership.is_recovering

    @property
    def num_lanes(self) -> int:
        """Number of functions that all workers together run at a time."""
        return self._pool.queue.lanes.per_worker * self.num_workers

    def use_present(self) -> Use:
        """Keeps the workers that are present, until they are released.

        A worker that is used does not leave, however it is asked.

        Returns:
            The use, with the indices of the workers.
        """
        return self._pool.membership.use_present()

    @property
    def has_work(self) -> bool:
        """True if a function waits or runs."""
        group_calls = self._group_calls
        return self._pool.queue.has_work or not (
            group_calls is None or group_calls.is_idle
        )

    @property
    def has_error(self) -> bool:
        """True if the next `schedule`, `join` or `done` raises an error."""
        return self._pool.queue.has_error

    @property
    def round(self) -> int:
        """Number of errors so far; each has cancelled the functions then."""
        return self._pool.queue.round

    def limit_in_flight(self, per_worker: int) -> None:
        """Sets the number of functions that each worker runs at a time.

        Args:
            per_worker: From 1 to `in_flight_limits.most`. Functions that run
                already go on.
        """
        lanes = self._pool.queue.lanes
        if per_worker != lanes.per_worker:
            lanes.limit(per_worker)

    def schedule(
        self,
        fn: Callable[..., Any],
        args: Any = None,
        kwargs: dict[str, Any] | None = None,
    ) -> RemoteValue:
        """Schedules a function to run on a worker, and returns at once.

        As `tf.distribute.coordinator.ClusterCoordinator.schedule`. Only while
        the queue is full (32 functions for each that runs) does it wait.

        A `tf.function` is traced here, unless it was traced for arguments of
        the same kind. A concrete function runs as it is. A Python callable
        runs on a thread of the chief, with its operations placed on the
        worker; so does every `tf.function` after
        `tf.config.run_functions_eagerly(True)`.

        Under `tfps.Sync()`, a `tf.function` in which `strategy.run` calls
        `optimizer.apply` is a step that all workers make together: each of
        them runs it, and the result has a
        `tf.distribute.DistributedValues` in place of each tensor.

        Args:
            fn: A `tf.function`, a concrete function or a Python callable.
            args: Its positional arguments, a tuple or list, or None. Each
                `tfps.PerWorkerValues` in this nested structure is replaced by
                the value of the worker that runs the function.
            kwargs: Its keyword arguments, likewise.

        Returns:
            The future result of the function.

        Raises:
            TypeError: If `fn` is not callable.
            InputError: If an argument, or what `fn` captures, is a dataset,
                iterator or lookup table that cannot leave the chief.
            ValueError: If an argument is a `RemoteValue`, or a
                `PerWorkerValues` of unknown type for a `tf.function`.
            UnsupportedError: When called inside a scheduled function or while
                a `tf.function` is traced.
            WorkerLostError: If all workers were lost for too long.
            ParameterServerLostError: If a ps was lost and not recovered.
            StrategySupersededError: If a newer strategy has replaced this one.
            ClosureCancelledError: If the coordinator was closed.
            BaseException: The exception of an earlier function; `fn` is not
                scheduled then.
        """
        caller_checks.refuse_inside("schedule")
        return self._schedule(fn, args, kwargs)

    def schedule_on(
        self,
        worker_index: int,
        fn: Callable[..., Any],
        args: Any = None,
        kwargs: dict[str, Any] | None = None,
    ) -> RemoteValue:
        """Schedules a function to run on one worker alone, at most once.

        As `schedule`, but no other worker ever runs the function, and it does
        not run a second time. Where another function would run again, it is
        cancelled: when its worker is lost or hangs, when a parameter server is
        lost and recovered, or when a connection fails. It is cancelled at once
        if the worker is absent or a parameter server is being recovered. Then
        `fetch` of its result raises `ClosureCancelledError`; `join` does not.

        The worker runs such functions before those that any worker may run.

        Args:
            worker_index: The worker, one of `worker_indices`.
            fn: A `tf.function`, a concrete function or a Python callable.
            args: Its positional arguments, a tuple or list, or None. Each
                `tfps.PerWorkerValues` in this nested structure is replaced by
                the worker's value.
            kwargs: Its keyword arguments, likewise.

        Returns:
            The future result of the function.

        Raises:
            TypeError: If `fn` is not callable.
            InputError: If an argument, or what `fn` captures, is a dataset,
                iterator or lookup table that cannot leave the chief.
            ValueError: If `worker_index` is not that of a worker, or an
                argument is a `RemoteValue`, or a `PerWorkerValues` of unknown
                type for a `tf.function`.
            UnsupportedError: When called inside a scheduled function or while
                a `tf.function` is traced.
            WorkerLostError: If all workers were lost for too long.
            ParameterServerLostError: If a ps was lost and not recovered.
            StrategySupersededError: If a newer strategy has replaced this one.
            ClosureCancelledError: If the coordinator was closed.
            BaseException: The exception of an earlier function; `fn` is not
                scheduled then.
        """
        caller_checks.refuse_inside("schedule_on")
        caller_checks.require_worker_index(worker_index, self.worker_indices)
        return self._schedule(fn, args, kwargs, worker_index)

    def _schedule(
        self,
        fn: Callable[..., Any],
        args: Any,
        kwargs: dict[str, Any] | None,
        bound_to: int | None = None,
    ) -> RemoteValue:
        with self._safe_points.scheduling():
            return self._put(fn, args, kwargs, bound_to)

    def _put(
        self,
        fn: Callable[..., Any],
        args: Any,
        kwargs: dict[str, Any] | None,
        bound_to: int | None,
    ) -> RemoteValue:
        queue = self._pool.queue
        if queue.has_error:
            queue.raise_error()
        call, step = self.functions.bind(fn, args, kwargs)
        remote_value = RemoteValue(
            self._raise_pending,
            self._connection,
            self._kept,
            is_spread=bool(call.pinned_workers),
        )
        if step is None or self._group_calls is None:
            queue.put(Closure(call, remote_value, bound_to))
        elif bound_to is None:
            self._group_calls.put(call, step, remote_value)
        else:
            raise errors.UnsupportedError(
                "All workers make a synchronous step together. Expected "
                "coordinator.schedule(), which runs the function on each. "
                f"Received: schedule_on({bound_to}) of {call}. Call "
                "schedule(), or train with consistency=tfps.Async()."
            )
        return remote_value

    def _join_all(self) -> None:
        """Waits until every function has ended, on one worker or on all."""
        group_calls = self._group_calls
        while True:
            if group_calls is not None:
                group_calls.wait_until_idle(None)
            self._pool.queue.join()
            if group_calls is None or group_calls.is_idle:
                return

    def join(self) -> None:
        """Waits until every scheduled function has ended.

        As `tf.distribute.coordinator.ClusterCoordinator.join`.

        Raises:
            UnsupportedError: When called inside a scheduled function or while
                a `tf.function` is traced.
            WorkerLostError: If all workers were lost for too long.
            ParameterServerLostError: If a ps was lost and not recovered.
            StrategySupersededError: If a newer strategy has replaced this one.
            BaseException: The exception of a function, once nothing runs any
                more; the other functions are cancelled.
        """
        caller_checks.refuse_inside("join")
        self._join_all()
        self._safe_points.reach()

    def done(self) -> bool:
        """Returns whether every scheduled function has ended.

        As `tf.distribute.coordinator.ClusterCoordinator.done`.

        Returns:
            True if no function waits or runs. It does not wait, except for
            functions that are being cancelled because of an exception.

        Raises:
            UnsupportedError: When called inside a scheduled function or while
                a `tf.function` is traced.
            WorkerLostError: If all workers were lost for too long.
            ParameterServerLostError: If a ps was lost and not recovered.
            StrategySupersededError: If a newer strategy has replaced this one.
            BaseException: The exception of a function.
        """
        caller_checks.refuse_inside("done")
        self._safe_points.reach()
        group_calls = self._group_calls
        # In this order: what runs on all workers ends by functions on each.
        is_idle = group_calls is None or group_calls.is_idle
        return self._pool.queue.is_done() and is_idle

    def fetch(self, val: Any) -> Any:
        """Waits for results and copies them to the chief.

        As `tf.distribute.coordinator.ClusterCoordinator.fetch`.

        Args:
            val: A nested structure of `RemoteValue`s and other values.

        Returns:
            The same structure, with the result in place of each `RemoteValue`:
            NumPy arrays in place of tensors, with their shapes and dtypes. The
            result of a step of `tfps.Sync()` has a
            `tf.distribute.DistributedValues` of such arrays in place of each
            tensor. Other values stay as they are.

        Raises:
            UnsupportedError: When called inside a scheduled function or while
                a `tf.function` is traced.
            ClosureCancelledError: If the function was cancelled.
            WorkerLostError: If a result was on a worker that died since, or
                all workers were lost for too long.
            ParameterServerLostError: If a ps was lost and not recovered.
            StrategySupersededError: If a newer strategy has replaced this one.
            BaseException: The exception of a scheduled function.
        """
        caller_checks.refuse_inside("fetch")
        self._safe_points.reach()
        self._pool.queue.raise_error()
        return fetch_all(val)

    def create_per_worker_dataset(self, dataset_fn: Any) -> WorkerDataset:
        """Creates a dataset for each worker, built on that worker.

        As
        `tf.distribute.coordinator.ClusterCoordinator.create_per_worker_dataset`.

        Args:
            dataset_fn: A function or `tf.function` that returns a
                `tf.data.Dataset`, with no argument or with the worker's
                `tf.distribute.InputContext`; or a `tf.data.Dataset`, which
                every worker then reads in full. The function is traced here,
                once for each worker.

        Returns:
            The dataset. `iter` of it gives one iterator per worker, to be
            passed to `schedule`.

        Raises:
            InputError: If the dataset cannot be built on a worker.
            TypeError: If `dataset_fn` is neither a dataset nor a function
                that returns one.
            UnsupportedError: When called inside a scheduled function or while
                a `tf.function` is traced.
            BaseException: The exception of `dataset_fn`.
        """
        caller_checks.refuse_inside("create_per_worker_dataset")
        indices = self.worker_indices
        dataset = WorkerDataset(
            dataset_fn,
            len(indices),
            self.functions.tracing_scope,
            indices=indices,
        )
        self._connection.part(WorkerDatasets).add(dataset)
        return dataset

    def cancel_queued(self) -> int:
        """Cancels functions that no worker has begun; others go on.

        Returns:
            Number of cancelled functions. Fetching their results raises
            `ClosureCancelledError`; `join` does not.
        """
        num_cancelled = self._pool.queue.cancel_queued()
        if self._group_calls is not None:
            num_cancelled += self._group_calls.cancel_waiting()
        return num_cancelled

    def wait_until_quiet(self, timeout_seconds: float) -> bool:
        """Waits until no function runs; functions may still wait.

        Args:
            timeout_seconds: How long to wait at most.

        Returns:
            Whether none runs.
        """
        deadline = time.monotonic() + timeout_seconds
        if self._group_calls is not None:
            self._group_calls.wait_until_idle(timeout_seconds)
        return self._pool.queue.wait_until_quiet(
            max(0.0, deadline - time.monotonic())
        )

    def set_back(self) -> None:
        """Takes variables back to the last checkpoint, as a lost ps does.

        Does nothing without a checkpoint. The counter `ps_recovered` tells.
        """
        self._pool.examiner.set_back()

    def end_round(self, error: BaseException) -> None:
        """Cancels all functions; the next caller raises an error.

        Args:
            error: The error.
        """
        self._pool.queue.end_round(error)

    def close(self) -> None:
        """Cancels functions that wait, and ends the coordinator's threads.

        Waits up to 10 s for functions that run, and then cancels them. A
        second call does nothing. The strategy can have a new coordinator.
        """
        if not self._begin_to_close():
            return
        if self._group_calls is not None:
            self._group_calls.stop()
        for work in self._background:
            work.stop(_BACKGROUND_TIMEOUT_SECONDS)
        self._pool.stop()
        self._pool.join()
        if self._group_calls is not None:
            # Its workers have ended; parameter servers end just after them.
            self._group_calls.wait_until_idle(_GROUP_CALLS_TIMEOUT_SECONDS)

    def _end(self, error: errors.StrategySupersededError) -> bool:
        """Ends the coordinator because the connection to the cluster ended.

        Args:
            error: Raised by every call from now on.

        Returns:
            Whether no function runs any more.
        """
        if not self._begin_to_close():
            return True
        if self._group_calls is not None:
            self._group_calls.stop()
        is_quiet = self._pool.end(error)
        for work in self._background:
            work.stop(_BACKGROUND_END_TIMEOUT_SECONDS)
        self._pool.join()
        return is_quiet

    def _begin_to_close(self) -> bool:
        """Removes all registrations; False if that was done before."""
        with _creation_lock:
            if self._closed:
                return False
            self._closed = True
            if self.strategy._cluster_coordinator is self:
                self.strategy._cluster_coordinator = None
        self._registrations.close()
        return True


def _holdings(strategy: Any, session: SessionLike) -> Callable[[int], str]:
    """Returns a function that describes what a ps holds, by its index."""
    reference = weakref.ref(strategy)

    def describe(ps_index: int) -> str:
        inventory = getattr(reference(), "inventory", None)
        if inventory is None:
            return "unknown variables"
        task = session.cluster.task(PARAMETER_SERVER, ps_index)
        text: str = inventory.describe(session.device(task))
        return text

    return describe


def _drain(
    queue: ClosureQueue, group_calls: GroupCalls | None, timeout_seconds: float
) -> bool:
    """Waits until no function waits or runs; returns whether none does."""
    deadline = time.monotonic() + timeout_seconds
    if group_calls is not None and not group_calls.wait_until_idle(
        timeout_seconds
    ):
        return False
    return queue.wait_until_idle(max(0.0, deadline - time.monotonic()))


def _is_over(
    reference: weakref.ref[ClusterCoordinator], connection: Connection
) -> bool:
    """Returns whether a coordinator was closed, or its connection has ended."""
    coordinator = reference()
    return coordinator is None or coordinator._closed or connection.is_over


def _leave(
    registrations: contextlib.ExitStack, background: list[Any]
) -> Callable[[], None]:
    """Returns a function that ends what outlives a collected coordinator."""

    def leave() -> None:
        registrations.close()
        for work in background:
            work.stop(_BACKGROUND_TIMEOUT_SECONDS)

    return leave
