"""Lets one update of a variable at a time run on its parameter server.

An optimizer's update reads a variable and its slots, computes, and assigns
them. Two workers that do so at once lose one of the updates, and may leave
slots that do not belong together: a second moment below zero, and then NaN.
TensorFlow's variables guard single operations only.

A lock is taken on the ps, by the ps, and is held while operations of that ps
run: nothing that a worker or the network could delay.
"""

import contextlib
import threading
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.chief import connection
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.kinds.handle_areas import HandleAreas
from tfps_plugin.variables.step_trace import StepTrace

# Locks a ps has for its large variables; small ones share another. Each costs
# the ps a thread.
_STRIPES = 16
# Updates of smaller variables take microseconds: one lock does for all.
_LARGE_BYTES = 1 << 20


class UpdateLock:
    """A lock on one parameter server, taken inside traced functions.

    Guarantees: sections of any functions of any workers that hold the same
    lock never overlap; a section that fails or is cancelled gives it back;
    sections inside a section, traced on the same thread, take it only once.
    Sections of one function follow each other in the order of the program.
    The lock is taken when everything has been computed that the section
    needs from outside, so that no section waits for another one's lock.

    The lock is a resource of the ps, looked up at call time as a variable's
    handle is.
    """

    def __init__(self, device: str, name: str) -> None:
        """Names the lock; the ps makes it when it is first needed.

        Args:
            device: Full device name of the ps.
            name: Unique on that ps.
        """
        self.device = device
        self.name = name
        self._own: tf.Tensor | None = None
        self._connection = connection.present()

    def forget(self) -> None:
        """Has the next call make the lock anew: its ps was replaced."""
        self._own = None
        self._connection.part(HandleAreas).handles_have_changed()

    def _handle_now(self) -> tf.Tensor:
        self._connection.require()
        if self._own is None:
            if dispatch_context.current() is None:
                # The chief, which traces or runs a step: if the ps is lost, it
                # waits for it, as with whatever it reads.
                self._own = chief_reads.read(self._make)
            else:
                self._own = self._make()
        return self._own

    def _make(self) -> tf.Tensor:
        with tf.init_scope(), compat.clear_device(), tf.device(self.device):
            return tf.raw_ops.MutexV2(container="", shared_name=self.name)

    @contextlib.contextmanager
    def holding(self, after: Sequence[tf.Tensor] = ()) -> Iterator[None]:
        """Holds the lock for the operations made in this context.

        Outside of functions it does nothing: the chief's own assignments are
        single operations.

        Args:
            after: What must have arrived on the ps before the lock is taken,
                such as gradients: nobody waits for a worker under a lock.
                Tensors of the ps that the section goes on with; a tensor of
                a worker is waited for, but may still be on its way then.

        Raises:
            UnsupportedError: If the section calls a `tf.function` that has a
                section of the same lock: it would wait for itself for ever.
        """
        graph = compat.function_graph()
        step = StepTrace.current()
        holder = step.holder_of(self._key)
        if graph is None or holder is graph:
            yield
            return
        if holder is not None:
            # Its trace would be kept, and run without the lock elsewhere.
            raise self._nested_function()
        handle = compat.capture_at_call_time(
            graph,
            self._handle_now,
            compat.LateBoundHandleSpec(self._handle_now(), self.device),
            key=self._key,
        )
        with tf.device(self.device), tf.control_dependencies(list(after)):
            lock = tf.raw_ops.MutexLock(mutex=handle)
        section = _Section()
        with step.holding(self._key, graph), tf.control_dependencies([lock]):
            yield
        section.end()
        if section.takes(lock.op.inputs[0]):
            raise self._nested_function()
        compat.run_after(lock.op, section.needs(lock.op))
        for change in section.changes():
            # tf.control_dependencies leaves out what seems to follow already,
            # from a handle that was captured in this context: it does not.
            compat.run_after(change, [lock.op])
        # The lock lives as long as something is going to use it.
        with (
            tf.device(self.device),
            tf.control_dependencies(section.changes()),
        ):
            tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    @property
    def is_held(self) -> bool:
        """Whether this thread is tracing a section of this lock."""
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


class _Section:
    """The operations that are added to the present graph until `end`."""

    def __init__(self) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._start = len(self._graph.get_operations())
        self._operations: list[tf.Operation] = []

    def end(self) -> None:
        """Takes what was added so far for the whole section."""
        self._operations = [
            operation
            for operation in self._graph.get_operations()[self._start :]
            if operation.type != "Placeholder"
        ]

    def changes(self) -> list[tf.Operation]:
        """Those that read or change a variable."""
        return [
            operation
            for operation in self._operations
            if any(t.dtype == tf.resource for t in operation.inputs)
        ]

    def takes(self, handle: tf.Tensor) -> bool:
        """Whether any of them, such as a call, is given `handle`."""
        return any(
            given is handle
            for operation in self._operations
            for given in operation.inputs
        )

    def needs(self, lock: tf.Operation) -> list[tf.Operation]:
        """Earlier operations that some of these cannot run before.

        They compute what the section is given, or have used its variables:
        the function will run them in the order of the program. Waiting for
        them under the lock might be waiting for another section, which waits
        for this one.
        """
        inside = {operation.name for operation in self._operations}
        inside.add(lock.name)
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
        """The lock of a new variable.

        Args:
            device: The ps that holds it.
            num_bytes: Its size.

        Returns:
            The one that small variables of the ps share, or one of a few
            that its large variables take in turn.
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
        """Has the locks of a ps made anew, which was replaced."""
        with self._lock:
            for lock in self._locks.values():
                if lock.device == device:
                    lock.forget()
