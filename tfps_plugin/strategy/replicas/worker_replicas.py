"""Replicas of one worker, which compute a step together."""

import contextlib
import functools
import threading
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat.graph import tensorflow_graphs
from tfps_plugin._compat.runtime.tensorflow_tracing import TracingScopes
from tfps_plugin.inputs import batch_rows
from tfps_plugin.strategy.replicas import per_replica
from tfps_plugin.strategy.replicas import split_batches
from tfps_plugin.strategy.replicas.per_replica import PerReplica
from tfps_plugin.strategy.replicas.replica_context import ReplicaContext
from tfps_plugin.strategy.replicas.replica_exchange import ReplicaExchange
from tfps_plugin.strategy.replicas.replica_threads import ReplicaThreads
from tfps_plugin.strategy.replicas.separation import Separation
from tfps_plugin.strategy.replicas.shares import Shares
from tfps_plugin.variables.states import combining
from tfps_plugin.variables.step_trace import StepTrace


class WorkerReplicas:
    """Traces a step once for each replica of a worker, each on its device.

    The replicas share what goes to parameter servers: rows are looked up once
    for all, and their gradients are added up on the worker.

    Threading: only the thread that traces uses it.
    """

    def __init__(self, strategy: Any, devices: Sequence[str]) -> None:
        """Prepares.

        Args:
            strategy: The strategy.
            devices: The device of each replica, without a task.
        """
        self._strategy = strategy
        self._devices = list(devices)
        self._graph = tf.compat.v1.get_default_graph()
        self._trace = StepTrace.current()
        self._arguments: Any = None
        self._shares: Shares | None = None
        self._exchange = ReplicaExchange(
            self._known_shares, self._trace.exchange, devices
        )
        self._replicas = [
            _Replica(self, index) for index in range(len(devices))
        ]
        self._threads = ReplicaThreads(self._turn)
        self._separation = Separation(
            self._graph, is_in_round=self._trace.accrual is not None
        )

    def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Traces the function in all replicas.

        Args:
            function: A function of a replica's share of the batch.
            args: Its positional arguments, as of `strategy.run`.
            kwargs: Its keyword arguments, likewise.

        Returns:
            A structure like the function's result, of `PerReplica`.

        Raises:
            InputError: If an argument cannot be split over replicas.
            UnsupportedError: If replicas cannot make the step together.
        """
        args, kwargs = self._split((args, kwargs))
        self._arguments = (args, kwargs)
        if self._sizes() is not None:
            # Here, and not in the scopes of a replica.
            self._known_shares()
        self._separation.begin()
        scopes = TracingScopes()
        keras_scopes = keras_compat.scopes_of_thread()
        caller = threading.get_ident()
        runs = self._strategy.extended.chief_runs
        number = len(self._devices)

        def traced(index: int) -> Any:
            with (
                scopes.entered(),
                runs.on_behalf_of(caller),
                tf.device(self._devices[index]),
                ReplicaContext(self._strategy, index),
            ):
                keras_compat.enter_scopes(keras_scopes)
                return function(
                    *per_replica.of_replica(args, index, number),
                    **per_replica.of_replica(kwargs, index, number),
                )

        # What replicas do together is what a worker with one replica does.
        with ReplicaContext(self._strategy, 0):
            results = self._threads.run(
                [functools.partial(traced, index) for index in range(number)]
            )
        exchange = self._exchange
        combining.require_means(
            exchange.changes,
            exchange.assigned,
            [results, exchange.results],
            who=f"the {number} replicas of a worker",
            advice="Train with replicas_per_worker=1",
        )
        self._separation.require_own_tensors(self._arguments)
        return per_replica.together(results, self.sizes)

    def meet(
        self,
        index: int,
        what: str,
        argument: Any,
        function: Callable[[Sequence[Any]], Sequence[Any]],
    ) -> Any:
        """Does something for all replicas; see `Replica.meet`."""
        return self._threads.meet(index, what, argument, function)

    @property
    def can_meet(self) -> bool:
        """True if the code that runs now is outside of inner functions."""
        return tf.compat.v1.get_default_graph() is self._graph

    def is_present(self, index: int) -> tf.Tensor:
        """Returns whether a replica has examples; see `Replica`."""
        if self.sizes is None:
            return tf.constant(True)
        return self._known_shares().is_present(index)

    def weight(self, index: int) -> tf.Tensor:
        """Returns the share of a replica in the examples; see `Replica`."""
        if self.sizes is None:
            return tf.constant(1.0 / len(self._devices))
        return self._known_shares().weight(index, tf.float32)

    @property
    def sizes(self) -> list[tf.Tensor] | None:
        """Number of examples of each replica; see `Replica`."""
        return None if self._shares is None else self._shares.sizes

    @contextlib.contextmanager
    def _turn(self, index: int) -> Iterator[None]:
        """Marks a replica as the one that traces."""
        trace = self._trace
        outer = trace.exchange
        trace.replica, trace.exchange = self._replicas[index], self._exchange
        try:
            with self._separation.turn(index):
                yield
        finally:
            trace.replica, trace.exchange = None, outer

    def _batches(self) -> list[PerReplica]:
        return [
            value
            for value in tf.nest.flatten(self._arguments)
            if isinstance(value, PerReplica)
        ]

    def _known_shares(self) -> Shares:
        """Returns the shares of the replicas.

        Raises:
            UnsupportedError: If no argument tells how many examples each has.
        """
        if self._shares is None:
            # Not in the scopes of a replica, whose tensors others use, too.
            with self._graph.as_default(), tf.control_dependencies(None):
                self._shares = self._shares_of_arguments()
        return self._shares

    def _shares_of_arguments(self) -> Shares:
        sizes = self._sizes()
        if sizes is not None:
            return Shares(sizes)
        raise errors.UnsupportedError(
            "A step is the mean over the examples of all replicas of a worker, "
            "so the number of them has to be seen. Expected the batch among "
            "the arguments of strategy.run(). Received: none. Read it outside, "
            "and pass it to strategy.run(), or train with "
            "replicas_per_worker=1."
        )

    def _sizes(self) -> list[tf.Tensor] | None:
        """Returns the number of examples of each replica, if one can tell."""
        for value in self._batches():
            if value.num_examples is not None:
                return list(value.num_examples)
        for value in self._batches():
            sizes = [batch_rows.sizes(each) for each in value.values]
            if all(sizes):
                return [each[0] for each in sizes]
        return None

    def _split(self, arguments: Any) -> Any:
        """Returns arguments in which batches are split over replicas.

        Raises:
            InputError: If it cannot be seen whether an argument is a batch.
        """
        leaves = tf.nest.flatten(arguments)
        is_batch = [_is_read(leaf) for leaf in leaves]
        for leaf, is_read in zip(leaves, is_batch, strict=True):
            if not is_read and not isinstance(leaf, PerReplica):
                _require_constant(leaf)
        if not any(is_batch):
            return arguments
        batch = [
            leaf for leaf, each in zip(leaves, is_batch, strict=True) if each
        ]
        shares = iter(split_batches.split(batch, len(self._devices)))
        return tf.nest.pack_sequence_as(
            arguments,
            [
                next(shares) if each else leaf
                for leaf, each in zip(leaves, is_batch, strict=True)
            ],
        )


class _Replica:
    """One replica; see `step_trace.Replica`."""

    def __init__(self, replicas: WorkerReplicas, index: int) -> None:
        self.index = index
        self._replicas = replicas

    @property
    def is_present(self) -> tf.Tensor:
        return self._replicas.is_present(self.index)

    @property
    def sizes(self) -> Sequence[tf.Tensor] | None:
        return self._replicas.sizes

    @property
    def weight(self) -> tf.Tensor:
        return self._replicas.weight(self.index)

    @property
    def can_meet(self) -> bool:
        return self._replicas.can_meet

    def meet(
        self,
        what: str,
        argument: Any,
        function: Callable[[Sequence[Any]], Sequence[Any]],
    ) -> Any:
        return self._replicas.meet(self.index, what, argument, function)


def _is_read(leaf: Any) -> bool:
    """Returns whether an argument is what an iterator has given, as it is."""
    tensors = tf.nest.flatten(leaf, expand_composites=True)
    return bool(tensors) and all(
        isinstance(each, tf.Tensor)
        and tf.is_symbolic_tensor(each)
        and tensorflow_graphs.is_input(each)
        for each in tensors
    )


def _require_constant(leaf: Any) -> None:
    """Refuses an argument that may be a batch, or may be for all replicas.

    Raises:
        InputError: If it may.
    """
    if not tf.is_tensor(leaf):
        return
    tensors = tf.nest.flatten(leaf, expand_composites=True)
    if isinstance(leaf, tf.Tensor) and leaf.shape.rank == 0:
        return
    if any(
        tf.is_symbolic_tensor(each) and combining.depends_on_data(each)
        for each in tensors
    ):
        raise errors.InputError(
            "A worker has several replicas, and strategy.run() got a tensor "
            "that may be a batch to split over them, or a value for each of "
            "them. Expected what an iterator gives, as it is, or a value of "
            "strategy.experimental_distribute_dataset() or "
            "experimental_distribute_values_from_function(). Received: "
            f"{leaf!r}. Distribute it, compute it in the function that "
            "strategy.run() calls, or train with replicas_per_worker=1."
        )
