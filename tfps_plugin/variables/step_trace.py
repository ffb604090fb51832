"""Knowledge that the lookups and updates of a step share while it is traced.

Third-party layers and optimizers read and assign our variables, for example in
`update_step`, and pass no handle along. So variables, lookups and updates find
the step that they are part of through `StepTrace.current`.
"""

import contextlib
import threading
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Protocol

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_graphs as compat


class View(Protocol):
    """Stands in for a variable while an optimizer updates it."""

    @property
    def shape(self) -> tf.TensorShape:
        """Shape of the values seen."""

    def read(self) -> tf.Tensor:
        """Returns the values seen, as of the last assignment."""

    def assign(self, method: str, value: Any) -> None:
        """Assigns, adds or subtracts.

        Args:
            method: `"assign"`, `"assign_add"` or `"assign_sub"`.
            value: A dense value of the shape that is seen.
        """


class Exchange(Protocol):
    """Takes the changes of a step that does not update variables itself."""

    @property
    def reads_exactly(self) -> bool:
        """True if the step reads what others have changed, not copies of it."""

    def push(
        self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> None:
        """Takes the gradients of one `optimizer.apply`.

        Args:
            optimizer: The Keras optimizer.
            gradients: A tensor or `tf.IndexedSlices` for every variable.
            variables: The `keras.Variable` of each gradient.
        """

    def assign(self, variable: Any, method: str, value: Any) -> None:
        """Takes a value that the step assigns to a variable.

        Args:
            variable: A variable on parameter servers.
            method: `"assign"`, `"assign_add"` or `"assign_sub"`.
            value: The value.
        """

    def all_reduce(
        self, reduce_op: Any, values: Sequence[Any]
    ) -> list[tf.Tensor]:
        """Returns sums or means of values over all that make the step.

        Args:
            reduce_op: A `tf.distribute.ReduceOp`.
            values: Values of the step.
        """

    def all_gather(self) -> None:
        """Refuses the values of all that make the step, one by one."""


class Replica(Protocol):
    """One of several replicas of a worker, which trace the same step."""

    @property
    def index(self) -> int:
        """Index among the replicas of a worker."""

    @property
    def is_present(self) -> tf.Tensor:
        """True if it has examples of its own, a boolean scalar.

        If not, it computes on those of another, and nothing may count.
        """

    @property
    def sizes(self) -> Sequence[tf.Tensor] | None:
        """Number of examples of each replica, scalars; None: not known."""

    @property
    def weight(self) -> tf.Tensor:
        """Share of its examples in those of the worker, a float32 scalar."""

    @property
    def can_meet(self) -> bool:
        """True if the code that runs now is outside of inner functions."""

    def meet(
        self,
        what: str,
        argument: Any,
        function: Callable[[Sequence[Any]], Sequence[Any]],
    ) -> Any:
        """Does something once for all replicas; waits for the others.

        Args:
            what: Names it: all replicas have to come to the same.
            argument: What this replica gives.
            function: Maps what all give, in the order of replicas, to what
                each gets. It runs outside of the replicas.

        Returns:
            What this replica gets.
        """


class Accrual(Protocol):
    """Takes gradients that are applied later, in sums over some steps."""

    def push(
        self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> None:
        """Takes the gradients of one `optimizer.apply`.

        Args:
            optimizer: The Keras optimizer.
            gradients: A tensor or `tf.IndexedSlices` for every variable.
            variables: The `keras.Variable` of each gradient.
        """


class Update(NamedTuple):
    """One `optimizer.apply` of a step.

    Attributes:
        optimizer: The Keras optimizer.
        gradients: A tensor or `tf.IndexedSlices` for every variable.
        variables: The `keras.Variable` of each gradient.
    """

    optimizer: Any
    gradients: Sequence[Any]
    variables: Sequence[Any]


class StepTrace:
    """Views, held locks and looked-up rows of one step.

    The graph of the step's outermost function holds the `StepTrace`, for as
    long as the graph exists. Functions, loops and branches inside of that
    function are part of the same step.

    Outside of functions, an update runs operation by operation. For that, each
    thread has one `StepTrace`, which holds views only.

    Attributes:
        chief_waits: Whether the chief waits for the end of the step before it
            changes a variable. `fit` does; a custom loop may not.
        exchange: The receiver of changes that the step does not make itself,
            because workers make it together; None: it makes them.
        replica: The replica that is being traced, of a worker with several;
            None: the worker itself is.
        accrual: The receiver of gradients that are applied later, together
            with those of other steps of this worker; None: they are applied.
        updates: Calls of `optimizer.apply` so far; None: nobody asks.
        counts_after: What comes before an update is counted. Counting needs no
            gradients, so it could come long before these are known.
        is_discarded: Whether it is traced for the variables that it makes, and
            never runs.
        is_in_round: Whether it is, or ends, one of the local steps of a worker.
        global_step: The step that all workers make together, in a function
            that a program schedules itself; None: it has none.
        applies_alone: Whether it updates variables without other workers.
        reduces_alone: Whether it has reductions over workers, which workers
            that make a step together would have to make.
        is_gated: Whether the step waits for workers that are far behind, as
            bounded staleness demands.
        is_finite: Whether the gradients of all parameter servers are finite, a
            boolean scalar; None: not known.
        token: Stands for the step where a function of an earlier step must not
            be taken for one of this step.
        total_over_ps: Adds up a float32 vector over all parameter servers,
            which run the same function; None: nothing does.
        only_on: Device of the only parameter server that the function updates
            and runs on; None: it updates all. A gradient of a sharded variable
            then consists of the rows of the shards there, one shard behind the
            other.

    Threading: only the thread that traces the step uses it.
    """

    def __init__(self) -> None:
        """Creates the trace of a step that has not begun."""
        self.chief_waits = False
        self.exchange: Exchange | None = None
        self.replica: Replica | None = None
        self.accrual: Accrual | None = None
        self.updates: list[Update] | None = None
        self.counts_after: list[tf.Tensor] = []
        self.is_discarded = False
        self.is_in_round = False
        self.global_step: Any = None
        self.applies_alone = False
        self.reduces_alone = False
        self.is_gated = False
        self.is_finite: tf.Tensor | None = None
        self.total_over_ps: Callable[[tf.Tensor], tf.Tensor] | None = None
        self.only_on: str | None = None
        self.token = object()
        # Parameter servers that compute for the step, and the variables that
        # therefore do not travel.
        self._computed_on: set[str] = set()
        self._stay: set[str] = set()
        self._views: Mapping[str, View] = {}
        self._held_locks: dict[Any, tf.Graph] = {}
        # By function, table and replica: functions inside and around a function
        # cannot use its tensors.
        self._lookups: dict[
            tuple[tf.Graph, str, int], list[tuple[tf.Tensor, tf.Tensor]]
        ] = {}

    @classmethod
    def current(cls) -> "StepTrace":
        """Returns the step that this thread traces, or runs eagerly."""
        if tf.executing_eagerly():
            return _eager.step
        return cls.of_graph(tf.compat.v1.get_default_graph())

    @classmethod
    def of_graph(cls, graph: tf.Graph) -> "StepTrace":
        """Returns the step that a function is part of.

        Args:
            graph: The function, which may be inside of others.
        """
        outermost = compat.outermost_function(graph)
        return compat.attached(outermost, "step_trace", cls)

    # Computations on parameter servers.

    def computes_on_ps(self, device: str, variables: Sequence[Any]) -> None:
        """Notes that the step computes on a parameter server.

        Args:
            device: Its device.
            variables: Variables there, with which it computes.
        """
        self._computed_on.add(device)
        self._stay.update(variable._unique_id for variable in variables)

    def has_computed_on(self, device: str) -> bool:
        """Returns whether the step computes on a device for `tfps.on_ps`."""
        return device in self._computed_on

    def stays(self, variable: Any) -> bool:
        """Returns whether a variable and its gradients do not travel."""
        return variable._unique_id in self._stay

    # Views.

    @contextlib.contextmanager
    def viewing(self, views: Mapping[str, View]) -> Iterator[None]:
        """Replaces variables by views, in addition to present views.

        Args:
            views: Views by the `_unique_id` of the variables. A view itself
                reads and assigns the variables without any view.
        """
        with self._seeing({**self._views, **views}):
            yield

    def view_of(self, unique_id: str) -> View | None:
        """Returns the view that stands for a variable, if there is one."""
        view = self._views.get(unique_id)
        return None if view is None else _UnveiledView(self, view)

    @contextlib.contextmanager
    def _seeing(self, views: Mapping[str, View]) -> Iterator[None]:
        before = self._views
        self._views = views
        try:
            yield
        finally:
            self._views = before

    # Locks.

    @contextlib.contextmanager
    def holding(self, lock: Any, function: tf.Graph) -> Iterator[None]:
        """Notes that a lock is held in this context.

        Args:
            lock: A key of the lock.
            function: The graph of the function that takes the lock.
        """
        before = self._held_locks
        self._held_locks = {**before, lock: function}
        try:
            yield
        finally:
            self._held_locks = before

    def holder_of(self, lock: Any) -> tf.Graph | None:
        """Returns the graph of the function that holds a lock, or None.

        Args:
            lock: A key of the lock.
        """
        return self._held_locks.get(lock)

    @property
    def holds_a_lock(self) -> bool:
        """True if any lock is held here."""
        return bool(self._held_locks)

    # Lookups.

    def add_lookup(
        self, table: Any, ids_U: tf.Tensor, rows_UD: tf.Tensor
    ) -> None:
        """Remembers a lookup of the current function.

        Args:
            table: The variable.
            ids_U: Distinct row numbers.
            rows_UD: Their rows.
        """
        if not tf.executing_eagerly():
            key = self._lookup_key(table)
            self._lookups.setdefault(key, []).append((ids_U, rows_UD))

    def lookups_of(self, table: Any) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Returns the lookups that the current function has made so far.

        Returns:
            Distinct row numbers and their rows, for every lookup; nothing
            outside of functions, and nothing of functions inside or around
            this one.
        """
        if tf.executing_eagerly():
            return []
        return list(self._lookups.get(self._lookup_key(table), []))

    def _lookup_key(self, table: Any) -> tuple[tf.Graph, str, int]:
        graph = tf.compat.v1.get_default_graph()
        index = 0 if self.replica is None else self.replica.index
        return graph, table._unique_id, index


class _UnveiledView:
    """View that reads and assigns variables without any view."""

    def __init__(self, step: StepTrace, view: View) -> None:
        self._step = step
        self._view = view

    @property
    def shape(self) -> tf.TensorShape:
        return self._view.shape

    def read(self) -> tf.Tensor:
        with self._step._seeing({}):
            return self._view.read()

    def assign(self, method: str, value: Any) -> None:
        with self._step._seeing({}):
            self._view.assign(method, value)


class _EagerSteps(threading.local):
    """The `StepTrace` of each thread for eager execution.

    This has to be a thread-local: an `update_step` that runs operation by
    operation has no graph, and reads variables without a handle.
    """

    def __init__(self) -> None:
        self.step = StepTrace()


_eager = _EagerSteps()
