"""The public face of the coordinator: schedule, join, fetch."""

import atexit
import contextlib
import threading
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import TypeVar

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_captures
from tfps_plugin._compat import tensorflow_execution
from tfps_plugin.cluster.calls import cancelled_calls
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.turns import Turns
from tfps_plugin.coordinator.closures import arguments
from tfps_plugin.coordinator.closures.closure import Closure
from tfps_plugin.coordinator.closures.closure_queue import ClosureQueue
from tfps_plugin.coordinator.closures.remote_value import RemoteValue
from tfps_plugin.coordinator.closures.remote_value import fetch_all
from tfps_plugin.coordinator.error_notes import ErrorNotes
from tfps_plugin.coordinator.lanes import first_calls
from tfps_plugin.coordinator.lanes.lane import Lane
from tfps_plugin.coordinator.lanes.worker import Worker
from tfps_plugin.coordinator.members.inspector import Inspector
from tfps_plugin.coordinator.members.membership import Membership
from tfps_plugin.coordinator.members.ps_recovery import PsRecovery
from tfps_plugin.coordinator.members.stall_watch import StallWatch
from tfps_plugin.coordinator.session_protocol import SessionLike
from tfps_plugin.inputs import captured_inputs
from tfps_plugin.inputs.worker_dataset import WorkerDataset
from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.monitoring.events import Events
from tfps_plugin.variables.chief.recovery_gate import RecoveryGate
from tfps_plugin.variables.per_worker import worker_seeds
from tfps_plugin.variables.per_worker.worker_resident import Residents
from tfps_plugin.variables.states import copies

# Of each worker, unless somebody has said how many. A training that `fit` runs
# begins with one; of a function nobody knows whether it trains.
_IN_FLIGHT_AT_FIRST = 2
_MOST_IN_FLIGHT = 4
# Enough that lanes never wait for the caller; few enough that what waits
# (arguments, above all) stays small.
_QUEUED_CLOSURES_PER_LANE = 32
_NO_WORKER_TIMEOUT_SECONDS = 600.0
_PATIENCE_SECONDS = 30.0
_CLOSE_TIMEOUT_SECONDS = 10.0
_CANCEL_TIMEOUT_SECONDS = 5.0
# A function that takes its worker with it must not take all of them.
_MAX_WORKERS_LOST = 4

_creation_lock = threading.Lock()

T = TypeVar("T")


class ClusterCoordinator:
    """Schedules functions on the workers of a cluster.

        coordinator = tfps.ClusterCoordinator(strategy)
        dataset = coordinator.create_per_worker_dataset(dataset_fn)
        iterator = iter(dataset)
        for _ in range(steps):
            loss = coordinator.schedule(train_step, args=(iterator,))
        coordinator.join()
        print(loss.fetch())

    Scheduled functions run at least once, on any worker, several at a time
    and in no particular order. A worker that dies takes nothing with it: its
    functions run on the others, and it takes part again when it is back. An
    error of a function itself is raised by the next `schedule`, `join`,
    `done` or `fetch`, once; what was scheduled with it is cancelled, also what
    runs, and the coordinator can be used again.

    Constructed twice for one strategy, it is the same object. Once the
    strategy is collected, because nothing refers to either any more, its
    threads end within some seconds; `close` ends them at once.

    Threading: all methods are safe from several threads, but not from inside
    a scheduled function. Waits can be interrupted with Ctrl-C.
    """

    # Set up in __new__ and not in __init__, which Python would run again on
    # the coordinator that the strategy has already.

    strategy: tf.distribute.Strategy
    counters: Counters
    events: Events
    _in_flight_at_first: int
    _most_in_flight: int
    _least_in_flight: int
    _queue: ClosureQueue
    _membership: Membership
    _workers: tuple[Worker, ...]
    _closed: bool
    _background: list[Any]
    _settled: "weakref.WeakSet[Any]"
    _registrations: contextlib.ExitStack

    def __new__(
        cls,
        strategy: Any,
        *,
        no_worker_timeout_seconds: float = _NO_WORKER_TIMEOUT_SECONDS,
        patience_seconds: float = _PATIENCE_SECONDS,
        max_workers_lost_per_closure: int | None = _MAX_WORKERS_LOST,
    ) -> "ClusterCoordinator":
        """Returns the strategy's coordinator, made at the first call.

        Args:
            strategy: A `tfps.ParameterServerStrategy`.
            no_worker_timeout_seconds: How long scheduled functions may wait
                while every worker is lost.
            patience_seconds: How long a function may run before the tasks
                that it may wait for are asked whether they live. One that
                stays silent is given up; functions themselves may take as
                long as they like.
            max_workers_lost_per_closure: After how many workers in a row that
                were lost while they ran the same function, that function is
                taken for the cause and raises `ClosureLosesWorkersError`.
                None: never.

        Only the call that makes the coordinator sets these options.

        Raises:
            TypeError: If the strategy is not ours.
            StrategySupersededError: If a newer strategy has taken its place.
        """
        session = getattr(strategy, "session", None)
        if not isinstance(session, SessionLike):
            raise TypeError(
                "A ClusterCoordinator cannot work with this strategy; "
                "expected a tfps.ParameterServerStrategy. Received: "
                f"strategy={strategy!r}. If it is TensorFlow's own, change "
                "tf.distribute.experimental. to tfps. where it is made."
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
        self._session = session
        self._closed = False
        # Functions of the program's own whose metric states have their rules.
        self._settled = weakref.WeakSet()
        tasks = session.cluster.workers
        chosen = getattr(strategy, "max_closures_in_flight_per_worker", None)
        self._in_flight_at_first = chosen or _IN_FLIGHT_AT_FIRST
        self._most_in_flight = chosen or _MOST_IN_FLIGHT
        # One at a time has nobody to fetch rows ahead.
        ahead = getattr(strategy, "prefetch_embeddings", None)
        self._least_in_flight = chosen or (2 if ahead else 1)
        self._queue = ClosureQueue(
            capacity=_QUEUED_CLOSURES_PER_LANE
            * self._in_flight_at_first
            * len(tasks),
            lanes_per_worker=self._in_flight_at_first,
            max_workers_lost=max_workers_lost,
            new_cancellation=tensorflow_execution.Cancellation,
        )
        cancelled_calls.install()
        self._raise_pending = self._queue.raise_error_at_once
        holdings = _holdings(strategy, session)
        notes = ErrorNotes(holdings)
        inspector = Inspector(session, self.counters, self.events, holdings)
        self._membership = Membership(
            session,
            self._queue,
            inspector,
            self.counters,
            self.events,
            no_worker_timeout_seconds=no_worker_timeout_seconds,
            forget_worker=session.connection.part(Residents).forget_worker,
            stall_watch=StallWatch(patience_seconds),
            ps_recovery=self._new_ps_recovery(inspector),
        )
        self._workers = tuple(
            Worker(
                task.index,
                [
                    Lane(
                        task.index,
                        task.index * self._most_in_flight + number,
                        _device_of(session, task),
                        self._queue,
                        self._membership,
                        self.counters,
                        self.events,
                        notes,
                        turns,
                        number=number,
                    )
                    for number in range(self._most_in_flight)
                ],
            )
            for task, turns in [(task, Turns()) for task in tasks]
        )
        reference = weakref.ref(self)
        # Where it is known, until it ends.
        self._registrations = contextlib.ExitStack()
        self._background = list(getattr(strategy, "background_work", ()))
        # A program that makes strategy after strategy need not close each.
        self._membership.start(
            {worker.worker_index: worker for worker in self._workers},
            is_wanted=lambda: reference() is not None,
            leave=_leave(self._registrations, self._background),
        )
        for worker in self._workers:
            worker.start()
        await_recovery = _weakly(self, ClusterCoordinator._await_recovery)
        self._registrations.callback(
            session.connection.part(RecoveryGate).register(
                lambda: bool(await_recovery())
            )
        )

        def end(error: errors.StrategySupersededError) -> bool:
            coordinator = reference()
            return coordinator is None or coordinator._end(error)

        self._registrations.callback(session.connection.on_end(end))
        for work in self._background:
            work.start(self)
        # The interpreter takes TensorFlow from under threads that still run.
        # Registered after the session's own end, this comes before it.
        close_at_exit = _weakly(self, ClusterCoordinator.close)
        atexit.register(close_at_exit)
        self._registrations.callback(atexit.unregister, close_at_exit)

    def _new_ps_recovery(self, inspector: Inspector) -> PsRecovery | None:
        restorer = getattr(self.strategy, "ps_restorer", None)
        if restorer is None:
            return None
        return PsRecovery(
            self._session,
            inspector,
            restorer,
            self.counters,
            self.events,
            timeout_seconds=self.strategy.ps_recovery_timeout_seconds,
        )

    def _await_recovery(self) -> bool:
        return self._membership.await_recovery()

    @property
    def is_recovering(self) -> bool:
        """Whether a parameter server is away that is waited for."""
        return self._membership.is_recovering

    @property
    def num_workers(self) -> int:
        """How many workers the cluster has, present or not."""
        return len(self._workers)

    @property
    def num_lanes(self) -> int:
        """How many functions run at the same time, on all workers."""
        return self._queue.lanes_per_worker * len(self._workers)

    @property
    def in_flight_at_first(self) -> int:
        """How many functions a worker runs at a time, if nobody limits it."""
        return self._in_flight_at_first

    @property
    def most_in_flight(self) -> int:
        """How many functions a worker can run at a time."""
        return self._most_in_flight

    @property
    def least_in_flight(self) -> int:
        """A worker is to run no fewer functions at a time than these.

        What was chosen; or two, to prefetch.
        """
        return self._least_in_flight

    def limit_in_flight(self, per_worker: int) -> None:
        """Has each worker run so many functions at a time, from now on.

        Args:
            per_worker: From 1 to `most_in_flight`.
        """
        if per_worker != self._queue.lanes_per_worker:
            self._queue.limit_lanes(per_worker)

    @property
    def absent_workers(self) -> tuple[int, ...]:
        """Indices of the workers that are lost at this moment."""
        return self._membership.absent

    @property
    def has_error(self) -> bool:
        """Whether the next `schedule`, `join` or `done` raises an error."""
        return self._queue.has_error

    def schedule(
        self,
        fn: Callable[..., Any],
        args: Any = None,
        kwargs: dict[str, Any] | None = None,
    ) -> RemoteValue:
        """Has a function run on a worker, some time soon.

        A `tf.function` is traced here if it has not been for arguments like
        these; a concrete function runs as it is; a Python callable runs on a
        thread of the chief with its operations placed on the worker, and so
        do all after `tf.config.run_functions_eagerly(True)`. Waits
        while as many functions are scheduled as the coordinator holds.

        Args:
            fn: A `tf.function`, a concrete function or a Python callable.
            args: Its positional arguments, a tuple or list. Wherever they
                contain `tfps.PerWorkerValues`, the function gets the value
                of the worker that it runs on.
            kwargs: Its keyword arguments, likewise.

        Returns:
            What it will return.

        Raises:
            TypeError: If `fn` cannot be called.
            InputError: If it uses a dataset, iterator or lookup table that
                cannot leave the chief.
            ValueError: If an argument is a `RemoteValue`.
            BaseException: What an earlier function raised; this one is not
                scheduled then.
            UnsupportedError: When called inside a scheduled function or while
                a `tf.function` is traced.
            WorkerLostError: If all workers are lost for too long.
            ParameterServerLostError: If a ps died.
        """
        _refuse_inside("schedule")
        if self._queue.has_error:
            self._queue.raise_error()
        call = arguments.bind(
            fn, args, kwargs, self.tracing_scope, self.prepare
        )
        remote_value = RemoteValue(
            self._raise_pending, self._session.connection
        )
        self._queue.put(Closure(call, remote_value))
        return remote_value

    def join(self) -> None:
        """Waits until every scheduled function ended.

        Raises:
            BaseException: What one of them raised, once nothing runs any
                more; the rest is cancelled.
            UnsupportedError: When called inside a scheduled function.
            WorkerLostError: If all workers are lost for too long.
            ParameterServerLostError: If a ps died.
        """
        _refuse_inside("join")
        self._queue.join()

    def done(self) -> bool:
        """Whether every scheduled function ended.

        Raises:
            BaseException: What one of them raised.
        """
        _refuse_inside("done")
        return self._queue.is_done()

    def fetch(self, val: Any) -> Any:
        """Waits for results and brings them here.

        Args:
            val: A nested structure; what is no `RemoteValue` stays as it is.

        Returns:
            The structure with results, as NumPy values, for remote values.

        Raises:
            BaseException: What a scheduled function raised.
            WorkerLostError: If a result was on a worker that died since.
        """
        _refuse_inside("fetch")
        self._queue.raise_error()
        return fetch_all(val)

    def create_per_worker_dataset(self, dataset_fn: Any) -> WorkerDataset:
        """Makes a dataset for each worker, built on that worker.

        Args:
            dataset_fn: A function or `tf.function` that returns a
                `tf.data.Dataset`, with no argument or with the worker's
                `tf.distribute.InputContext`; or a `tf.data.Dataset`, which
                every worker then reads in full. The function is traced here,
                once for each worker.

        Returns:
            The dataset; `iter` of it gives one iterator per worker, to be
            passed to `schedule`.

        Raises:
            InputError: If it cannot be built on a worker.
            TypeError: If it is neither a dataset nor a function of one.
            BaseException: What the function raised.
        """
        _refuse_inside("create_per_worker_dataset")
        return WorkerDataset(dataset_fn, self.num_workers, self.tracing_scope)

    def cancel_queued(self) -> int:
        """Cancels what no worker has begun; what runs goes on.

        Returns:
            How many functions were cancelled. Fetching their results raises
            `ClosureCancelledError`; `join` does not.
        """
        return self._queue.cancel_queued()

    def wait_until_quiet(self, timeout_seconds: float) -> bool:
        """Waits until no function runs; those that wait are left alone.

        Args:
            timeout_seconds: How long to wait.

        Returns:
            Whether none runs.
        """
        return self._queue.wait_until_quiet(timeout_seconds)

    def close(self) -> None:
        """Cancels what waits and ends the coordinator's threads.

        Waits a few seconds for what runs, and then cancels it. Calling it
        again does nothing; a new coordinator can be made for the strategy.
        """
        if not self._begin_to_close():
            return
        for work in self._background:
            work.stop(_CLOSE_TIMEOUT_SECONDS)
        self._queue.stop()
        if not self._queue.wait_until_quiet(_CLOSE_TIMEOUT_SECONDS):
            # Else its worker would run it for ever.
            self._queue.cancel_running()
            self._queue.wait_until_quiet(_CANCEL_TIMEOUT_SECONDS)
        self._end_threads()

    def _end(self, error: errors.StrategySupersededError) -> bool:
        """Ends it because the connection to the cluster has ended.

        Args:
            error: Raised by every call from now on.

        Returns:
            Whether no function runs any more.
        """
        if not self._begin_to_close():
            return True
        self._queue.end(error)
        is_quiet = self._queue.wait_until_quiet(_CANCEL_TIMEOUT_SECONDS)
        for work in self._background:
            work.stop(_CANCEL_TIMEOUT_SECONDS)
        self._end_threads()
        return is_quiet

    def _begin_to_close(self) -> bool:
        """Takes the coordinator out of all lists; whether it was in them."""
        with _creation_lock:
            if self._closed:
                return False
            self._closed = True
            if self.strategy._cluster_coordinator is self:
                self.strategy._cluster_coordinator = None
        self._registrations.close()
        return True

    def _end_threads(self) -> None:
        self._membership.stop(_CLOSE_TIMEOUT_SECONDS)
        for worker in self._workers:
            worker.join(1.0)

    @contextlib.contextmanager
    def tracing_scope(self) -> Iterator[None]:
        """What functions are traced in that workers run."""
        runs = self.strategy.extended.chief_runs
        with self.strategy.scope(), runs.traced_for_workers():
            worker_seeds.claim_global_seeds(self.strategy)
            yield

    def prepare(self, function: Any, owner: Any = None) -> Callable[..., Any]:
        """What calls a concrete function on a worker.

        Args:
            function: Traced under no device, in `tracing_scope`.
            owner: Whose steps it runs, such as a model; see
                `ParameterServerStrategy.explain`.

        Returns:
            A callable of the same arguments, to be called on a lane: it does
            the same with fewer messages.

        Raises:
            UnsupportedError: If it has no owner and assigns a metric state
                in a way that nothing can put together.
        """
        if function not in self._settled:
            captured_inputs.refuse_resources(function)
            if owner is None:
                copies.settle_or_refuse(function.graph)
            # Functions are scheduled many thousands of times.
            self._settled.add(function)
        return first_calls.alone(
            self.strategy.fused(function, owner),
            tensorflow_captures.parameter_servers(function.graph),
        )


def _device_of(session: SessionLike, task: Any) -> Callable[[], str]:
    # Asked anew for each closure: a worker may return with other devices.
    return lambda: session.device(task)


def _holdings(strategy: Any, session: SessionLike) -> Callable[[int], str]:
    """Tells what a ps holds, in words, by its index."""
    reference = weakref.ref(strategy)

    def describe(ps_index: int) -> str:
        inventory = getattr(reference(), "inventory", None)
        if inventory is None:
            return "unknown variables"
        task = session.cluster.parameter_servers[ps_index]
        text: str = inventory.describe(session.device(task))
        return text

    return describe


def _leave(
    registrations: contextlib.ExitStack, background: list[Any]
) -> Callable[[], None]:
    """Ends what is beside a coordinator that is gone."""

    def leave() -> None:
        registrations.close()
        for work in background:
            work.stop(_CLOSE_TIMEOUT_SECONDS)

    return leave


def _weakly(
    coordinator: ClusterCoordinator,
    method: Callable[[ClusterCoordinator], T],
) -> Callable[[], T | None]:
    """Calls a method of the coordinator, but does not keep it alive."""
    reference = weakref.ref(coordinator)

    def call() -> T | None:
        still_there = reference()
        return None if still_there is None else method(still_there)

    return call


def _refuse_inside(what: str) -> None:
    """Refuses what would wait for itself, or be done at trace time only."""
    if dispatch_context.current() is not None:
        raise errors.UnsupportedError(
            f"coordinator.{what}() was called inside a scheduled function, "
            "which would wait for itself; expected a call from the program's "
            "own thread. Return what you need and call it there."
        )
    # The first question is the cheaper one.
    if not tf.executing_eagerly() and tf.inside_function():
        raise errors.UnsupportedError(
            f"coordinator.{what}() was called while a tf.function was "
            "traced, so it would happen once and never again; expected a "
            "call from plain Python. Move it out of the tf.function."
        )
