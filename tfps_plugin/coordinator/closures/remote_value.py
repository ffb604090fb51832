"""Remote value: the future result of a scheduled function."""

import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.chief.connection import Connection
from tfps_plugin.cluster.spec import CHIEF
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.coordinator.closures.closure import ClosureState
from tfps_plugin.coordinator.closures.closure_queue import WAKE_UP_SECONDS
from tfps_plugin.coordinator.closures.kept_results import KeptResults
from tfps_plugin.coordinator.members import failures
from tfps_plugin.inputs.per_worker_values import PerWorkerValues
from tfps_plugin.strategy.replicas.per_replica import PerReplica
from tfps_plugin.strategy.replicas.replica_results import ReplicaResults
from tfps_plugin.variables.chief import chief_reads

# Marks a result that was not fetched yet.
_NOTHING = object()

__all__ = ["PerWorkerValues", "RemoteValue", "fetch_all"]


class RemoteValue:
    """Future result of a scheduled function; it stays on its worker.

    Has the semantics of `tf.distribute.experimental.coordinator.RemoteValue`.
    `ClusterCoordinator.schedule` returns it; it is not made by users. `fetch`
    copies the result to the chief, and nothing is sent before. Results that
    are no longer referenced are freed on their worker. A fetched result is
    kept, so fetching it again sends nothing.

    Threading: all methods are safe from any thread.

    Guarantees: the outcome is set once and never changes; each callback is
    called once.
    Guarded by `_has_ended`: the outcome is written before the flag is set, and
    read only after. Guarded by `_lock`: the callbacks, and the event that
    waiting threads share. Nothing is called under a lock.
    """

    # A program may hold many thousands of values, and Python's garbage
    # collector visits each object that they are made of.
    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_connection",
        "_error",
        "_event",
        "_fetched",
        "_has_ended",
        "_is_spread",
        "_kept",
        "_lock",
        "_raise_pending",
        "_result",
        "_worker_index",
    )

    def __init__(
        self,
        raise_pending: Callable[[], None] | None = None,
        connection: Connection | None = None,
        kept: KeptResults | None = None,
        *,
        is_spread: bool = False,
    ) -> None:
        """Creates a value that is not ready.

        Args:
            raise_pending: Raises the error that ended the closure's round, if
                it was not raised yet. So the caller of a cancelled closure
                learns why it was cancelled.
            connection: The connection to the result's cluster.
            kept: Brings the result to the chief when its worker leaves; None:
                nothing does.
            is_spread: Whether parts of it may be on other workers than the one
                that runs the function, which names them by `tf.device`.
        """
        self._kept = kept
        self._is_spread = is_spread
        self._raise_pending = raise_pending
        self._connection = connection
        self._has_ended = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] | None = None
        self._event: threading.Event | None = None
        self._result: Any = None
        self._fetched: Any = _NOTHING
        self._error: BaseException | None = None
        self._worker_index: int | None = None

    def __repr__(self) -> str:
        if not self._has_ended:
            return "<RemoteValue: not ready>"
        if self._error is not None:
            return f"<RemoteValue: {type(self._error).__name__}>"
        return f"<RemoteValue: ready on worker {self._worker_index}>"

    @property
    def error(self) -> BaseException | None:
        """Exception of the function; None if it raised none, or still runs."""
        return self._error if self._has_ended else None

    def is_ready(self) -> bool:
        """Returns whether the function ended, with a result or an error.

        Does not wait.
        """
        return self._has_ended

    def on_ended(self, callback: Callable[[], None]) -> None:
        """Calls back when the function has ended.

        Args:
            callback: Called once without arguments: on the thread that ends
                the function, or at once if it has ended already. It must
                neither wait nor raise.
        """
        with self._lock:
            if not self._has_ended:
                self._callbacks = [*(self._callbacks or ()), callback]
                return
        callback()

    def get(self, timeout_seconds: float | None = None) -> Any:
        """Waits for the result and returns it without copying it.

        Args:
            timeout_seconds: How long to wait, in seconds; None: without limit.

        Returns:
            The function's result. Its tensors stay on the worker, with their
            shapes and dtypes.

        Raises:
            TimeoutError: If the function did not end in time.
            ClosureCancelledError: If the function was cancelled.
            StrategySupersededError: If a newer strategy has replaced the one
                that ran the function.
            BaseException: The exception of the function.
        """
        self._wait(timeout_seconds)
        if self._error is None:
            if self._connection is not None:
                self._connection.require()
            return self._result
        if self._raise_pending is not None:
            self._raise_pending()
        raise self._error

    def fetch(self, timeout_seconds: float | None = None) -> Any:
        """Waits for the result and copies it to the chief.

        Args:
            timeout_seconds: How long to wait, in seconds; None: without limit.

        Returns:
            The function's result, with NumPy arrays in place of tensors, of
            the same shapes and dtypes. Each call returns its own copies.

        Raises:
            TimeoutError: If the function did not end in time.
            ClosureCancelledError: If the function was cancelled.
            WorkerLostError: If the result was on a worker that died before
                it was fetched.
            PlacementError: If the function computes it on the chief.
            StrategySupersededError: If a newer strategy has replaced the one
                that ran the function.
            BaseException: The exception of the function.
        """
        result = self.get(timeout_seconds)
        if self._fetched is _NOTHING:
            # Two threads that arrive here together fetch the same.
            self._fetched = self._copy_to_chief(result)
        return tf.nest.map_structure(_own_copy, self._fetched)

    def is_on(self, worker_index: int) -> bool:
        """Returns whether a part of the result is on a worker.

        Args:
            worker_index: The worker.
        """
        return worker_index in map(_worker_of, _tensors(self._result))

    def bring_home(self) -> None:
        """Brings the result to the chief, because its worker is to leave.

        Raises:
            WorkerLostError: If the worker does not answer.
        """
        self._fetched = self._copy_to_chief(self._result)
        with tf.device("/device:CPU:0"):
            self._result = tf.nest.map_structure(_to_tensor, self._fetched)

    def _copy_to_chief(self, result: Any) -> Any:
        """Copies a result from its worker."""
        try:
            return tf.nest.map_structure(_to_local, result)
        except tf.errors.OpError as error:
            if "on a REMOTE handle" in str(error) and any(
                _job_of(tensor) == CHIEF for tensor in _tensors(result)
            ):
                raise _on_the_chief() from error
            kind = failures.classify(
                type(error).__name__, str(error), self._worker_index or 0
            ).kind
            if kind is failures.FailureKind.USER:
                raise
            raise errors.WorkerLostError(
                "The result of a scheduled function was on worker "
                f"{self._worker_index}, which does not answer any more; "
                "expected it to live until the result was fetched. Received: "
                f"{type(error).__name__}: {_first_line(error)}. Fetch "
                "results sooner, or keep them in variables. The function "
                "itself was completed."
            ) from error

    def set_outcome(
        self, state: ClosureState, outcome: Any, worker_index: int | None
    ) -> None:
        """Sets the outcome; called once, by the coordinator.

        Args:
            state: The final state of the function.
            outcome: Its result if it is done, its exception if it has failed.
            worker_index: Index of the worker that ran it last; None: none
                did.
        """
        self._worker_index = worker_index
        if state is ClosureState.DONE:
            self._result = outcome
            if self._kept is not None and outcome is not None:
                self._kept.add(None if self._is_spread else worker_index, self)
        elif state is ClosureState.FAILED:
            self._error = outcome
        else:
            self._error = errors.ClosureCancelledError(
                "A scheduled function was cancelled, because another one "
                "failed, the coordinator was closed or told to cancel, or, "
                "after schedule_on(), its worker was lost or a connection "
                "failed; expected it to run to its end. It may have had "
                "effects. Schedule it again if you still need it."
            )
        with self._lock:
            self._has_ended = True
            callbacks, self._callbacks = self._callbacks, None
            event, self._event = self._event, None
        if event is not None:
            event.set()
        for callback in callbacks or ():
            callback()

    def _wait(self, timeout_seconds: float | None) -> None:
        deadline = (
            None
            if timeout_seconds is None
            else time.monotonic() + timeout_seconds
        )
        with self._lock:
            if self._has_ended:
                return
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        while not event.is_set():
            left_seconds = WAKE_UP_SECONDS
            if deadline is not None:
                left_seconds = min(left_seconds, deadline - time.monotonic())
                if left_seconds <= 0:
                    raise TimeoutError(
                        "A scheduled function did not end in time. Received: "
                        f"timeout_seconds={timeout_seconds}. Wait longer, or "
                        "call coordinator.join()."
                    )
            event.wait(left_seconds)


def fetch_all(structure: Any) -> Any:
    """Returns a nested structure with results in place of remote values."""
    return tf.nest.map_structure(
        lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf,
        structure,
    )


def _own_copy(leaf: Any) -> Any:
    if isinstance(leaf, ReplicaResults):
        return ReplicaResults([_own_copy(value) for value in leaf.values])
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _to_tensor(leaf: Any) -> Any:
    """Returns a part of a fetched result as `get` returns it."""
    if isinstance(leaf, ReplicaResults):
        return ReplicaResults([_to_tensor(value) for value in leaf.values])
    return tf.constant(leaf) if isinstance(leaf, np.ndarray) else leaf


def _to_local(leaf: Any) -> Any:
    """Returns a part of a result as a value of this process."""
    if isinstance(leaf, ReplicaResults | PerReplica):
        return ReplicaResults(_values(leaf))
    if isinstance(leaf, tf.Tensor):
        return chief_reads.to_array(leaf)
    if hasattr(leaf, "numpy"):
        return chief_reads.read(leaf.numpy)
    if isinstance(leaf, tf.SparseTensor | tf.IndexedSlices):
        return tf.nest.map_structure(tf.identity, leaf, expand_composites=True)
    return leaf


def _values(results: ReplicaResults | PerReplica) -> list[Any]:
    """Returns the results of all replicas that have examples, one by one."""
    if isinstance(results, PerReplica):
        numbers = results.num_examples or [1] * len(results.values)
        return [
            _to_local(value)
            for value, number in zip(results.values, numbers, strict=True)
            if int(_to_local(number)) > 0
        ]
    found: list[Any] = []
    for value in results.values:
        is_several = isinstance(value, PerReplica)
        found += _values(value) if is_several else [_to_local(value)]
    return found


def _tensors(structure: Any) -> Iterator[tf.Tensor]:
    """Yields the tensors of a result that was not copied yet."""
    for leaf in tf.nest.flatten(structure, expand_composites=True):
        if isinstance(leaf, ReplicaResults | PerReplica):
            yield from _tensors(list(leaf.values))
        elif isinstance(leaf, tf.Tensor):
            yield leaf


def _job_of(tensor: tf.Tensor) -> str | None:
    job: str | None = tf.DeviceSpec.from_string(tensor.device).job
    return job


def _worker_of(tensor: tf.Tensor) -> int | None:
    """Returns the index of the worker that a tensor is on, if it is on one."""
    device = tf.DeviceSpec.from_string(tensor.device)
    index: int | None = device.task if device.job == WORKER else None
    return index


def _on_the_chief() -> errors.PlacementError:
    """Returns the error for a result that TensorFlow does not hand out.

    It takes what a worker's function has computed on the chief for a tensor of
    another process, and then finds that it is not.
    """
    return errors.PlacementError(
        "A result of a scheduled function cannot be fetched, because tf.device "
        "places the operation that computes it on the chief, and TensorFlow "
        "does not hand out what a worker's function computes there. Expected a "
        "result that is on a worker or a parameter server. Received: "
        "tf.device('/job:chief/task:0'). What to do: leave the device out, or "
        "copy the result in the function, with "
        "tf.device('/job:ps/task:0'): return tf.identity(result). The function "
        "itself was completed. See docs/model_parallelism.md."
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
