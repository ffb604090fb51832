"""Lets one update of a variable at a time run on its parameter server.

An optimizer's update reads a variable and its slots, computes, and assigns
them. If two workers do so at once, one of the updates is lost, and slots may
become inconsistent: a second moment below zero leads to NaN. TensorFlow's
variables guard single operations only.

The ps itself takes the lock, and holds it only while its own operations run, so
that no worker or network can delay the release.
"""

import contextlib
import threading
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.chief import connection
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.kinds.handle_areas import HandleAreas
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.step_trace import StepTrace

# Number of locks of a ps for its large variables; small ones share another
# lock. Each lock costs the ps a thread.
_STRIPES = 16
# Updates of smaller variables take microseconds: one lock suffices for all.
_LARGE_BYTES = 1 << 20


class UpdateLock:
    """A lock on one parameter server, taken inside traced functions.

    Guarantees: sections of any functions of any workers that hold the same
    lock never overlap; a section that fails or is cancelled releases it;
    nested sections, traced on the same thread, acquire it only once.
    Sections of one function follow each other in the order of the program.
    A section acquires the lock after everything that it needs from outside
    has been computed, so that no section waits for another one's lock.

    The lock is a resource of the ps, looked up at call time like a variable's
    handle.
    """

    def __init__(self, device: str, name: str) -> None:
        """Names the lock; the ps makes it when it is first needed.

        Args:
            device: Full device name of the ps.
            name: A name that is unique on that ps.
        """
        self.device = device
        self.name = name
        self._own: tf.Tensor | None = None
        self._connection = connection.present()

    def forget(self) -> None:
        """Makes the next call create the lock again: its ps was replaced."""
        self._own = None
        self._connection.part(HandleAreas).handles_have_changed()

    def _handle_now(self) -> tf.Tensor:
        self._connection.require()
        if self._own is None:
            if dispatch_context.current() is None:
                # The chief traces or runs a step. If the ps is lost, it waits
                # for the ps, as in any read.
                self._own = chief_reads.read(self._make)
            else:
                self._own = self._make()
        return self._own

    def new_handle(self) -> tf.Tensor:
        """Returns a handle of the lock, for an argument of `holding_given`.

        Raises:
            tf.errors.OpError: If the ps does not answer. It is not waited for.
        """
        return self._make()

    def _make(self) -> tf.Tensor:
        with tf.init_scope(), compat.clear_device(), tf.device(self.device):
            return tf.raw_ops.MutexV2(container="", shared_name=self.name)

    @contextlib.contextmanager
    def holding(self, after: Sequence[tf.Tensor] = ()) -> Iterator[None]:
        """Holds the lock for the operations made in this context.

        Outside of functions it does nothing: the chief's own assignments are
        single operations.

        Args:
            after: Tensors on the ps that the section uses, such as gradients.
                They must have arrived before the lock is acquired, so that no
                section waits for a worker. A tensor on a worker will have been
                computed by then, but may still be on its way.

        Raises:
            UnsupportedError: If the section calls a `tf.function` that has a
                section of the same lock: it would wait for itself forever.
        """
        graph = compat.function_graph()
        step = StepTrace.current()
        holder = step.holder_of(self._key)
        if graph is None or holder is graph:
            yield
            return
        if holder is not None:
            # Its trace would be reused elsewhere, without the lock.
            raise self._nested_function()
        handle = compat.capture_at_call_time(
            graph,
            self._handle_now,
            compat.LateBoundHandleSpec(self._handle_now(), self.device),
            key=self._key,
        )
        with _held(handle, self.device, after) as section:
            with step.holding(self._key, graph):
                yield
            section.end()
            if section.takes_its_lock():
                raise self._nested_function()

    @property
    def is_held(self) -> bool:
        """True if this thread is tracing a section of this lock."""
        return StepTrace.current().holder_of(self._key) is not None

    def _nested_function(self) -> Exception:
        return errors.UnsupportedError(
            "An update of a variable calls a tf.function that updates a "
            "variable under the same lock: it would wait for itself for "
            f"ever. Received: lock={self.name!r} of {self.device}. Call the "
            "function before or after the update, or the Python function "
            "without tf.function in it."
        )

    @property
    def _key(self) -> Any:
        return ("tfps-lock", self.device, self.name)


class LocalLock:
    """A lock of the process that runs a traced function, such as a saved model.

    Guarantees: as `UpdateLock`, but sections may not be nested.
    """

    def __init__(self, name: str) -> None:
        """Names the lock; the first section makes it.

        Args:
            name: A name that nothing else in the process has.
        """
        self._name = name

    @contextlib.contextmanager
    def holding(self, after: Sequence[tf.Tensor] = ()) -> Iterator[None]:
        """Holds the lock for the operations made in this context.

        Outside of functions it does nothing.

        Args:
            after: Tensors that the section uses.
        """
        if compat.function_graph() is None:
            yield
            return
        with tf.device(graph_checks.CPU):
            # By its name: a saved model brings no resource with it.
            handle = tf.raw_ops.MutexV2(container="", shared_name=self._name)
        with _held(handle, graph_checks.CPU, after) as section:
            yield
            section.end()


@contextlib.contextmanager
def holding_given(
    handle: tf.Tensor, device: str, after: Sequence[tf.Tensor] = ()
) -> Iterator[None]:
    """Holds a lock for the operations made in this context of a function.

    The function gets the lock, and its variables, as arguments: they are those
    of the caller, and no others that a ps may have by the time of the call.

    Args:
        handle: An argument of the function, from `UpdateLock.new_handle`.
        device: Device of the lock.
        after: As for `UpdateLock.holding`.
    """
    with _held(handle, device, after) as section:
        yield
        section.end()


@contextlib.contextmanager
def _held(
    handle: tf.Tensor, device: str, after: Sequence[tf.Tensor]
) -> Iterator["_Section"]:
    """Holds a lock for the operations of a section, which the caller ends."""
    with tf.device(device), tf.control_dependencies(list(after)):
        lock = tf.raw_ops.MutexLock(mutex=handle)
    section = _Section(lock.op)
    with tf.control_dependencies([lock]):
        yield section
    compat.run_after(lock.op, section.needs())
    for change in section.changes():
        # tf.control_dependencies drops dependencies that seem to follow
        # from a handle that was captured in this context; they do not.
        compat.run_after(change, [lock.op])
    # The lock is held as long as an operation is going to use it.
    with tf.device(device), tf.control_dependencies(section.changes()):
        tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)


class _Section:
    """The operations that are added to the current graph until `end`."""

    def __init__(self, lock: tf.Operation) -> None:
        """Begins after the operation that takes the lock."""
        self._lock = lock
        self._graph = tf.compat.v1.get_default_graph()
        self._start = len(self._graph.get_operations())
        self._operations: list[tf.Operation] = []

    def end(self) -> None:
        """Ends the section: it has the operations added so far."""
        self._operations = [
            operation
            for operation in self._graph.get_operations()[self._start :]
            if operation.type != "Placeholder"
        ]

    def changes(self) -> list[tf.Operation]:
        """Returns the operations that read or change a variable."""
        return [
            operation
            for operation in self._operations
            if any(t.dtype == tf.resource for t in operation.inputs)
        ]

    def takes_its_lock(self) -> bool:
        """Returns whether the lock itself is an input of any operation."""
        handle = self._lock.inputs[0]
        return any(
            given is handle
            for operation in self._operations
            for given in operation.inputs
        )

    def needs(self) -> list[tf.Operation]:
        """Returns earlier operations that the section depends on.

        They compute the section's inputs, or have used its variables: the
        function runs them in the order of the program. If the section waited
        for them under the lock, it could wait for another section that waits
        for this one.
        """
        inside = {operation.name for operation in self._operations}
        inside.add(self._lock.name)
        given = {id(t): t for o in self._operations for t in o.inputs}
        before = [o for one in self._operations for o in one.control_inputs]
        for tensor in given.values():
            before.append(tensor.op)
            if tensor.dtype == tf.resource:
                before += tensor.consumers()
        found = {one.name: one for one in before}
        return [
            operation
            for name, operation in found.items()
            if name not in inside
            and operation.type not in ("Placeholder", "Const")
        ]


class UpdateLocks:
    """The locks of all parameter servers.

    Threading: variables may be created from several threads.
    Guarded by `_lock`: the dictionary.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, int], UpdateLock] = {}
        self._next_stripe: dict[str, int] = {}

    def for_variable(self, device: str, num_bytes: int) -> UpdateLock:
        """Returns the lock of a new variable.

        Returns:
            The lock that small variables of the ps share, or one of a few
            locks for large variables, in turn.
        """
        with self._lock:
            stripe = 0
            if num_bytes >= _LARGE_BYTES:
                stripe = 1 + self._next_stripe.get(device, 0) % _STRIPES
                self._next_stripe[device] = stripe
            key = (device, stripe)
            if key not in self._locks:
                self._locks[key] = UpdateLock(
                    device, f"tfps/update_lock/{stripe}"
                )
            return self._locks[key]

    def forget(self, device: str) -> None:
        """Makes calls create the locks of a replaced ps again."""
        with self._lock:
            for lock in self._locks.values():
                if lock.device == device:
                    lock.forget()
