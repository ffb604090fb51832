"""Queues on one parameter server, which functions find when they are called."""

import threading
import uuid
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.cluster.chief import connection
from tfps_plugin.cluster.chief import leftovers
from tfps_plugin.variables.kinds.handle_areas import HandleAreas
from tfps_plugin.variables.lookup import graph_checks

# TensorFlow may report the loss of another ps where an operation on this one
# is made.
_ATTEMPTS = 5


class _Handles(NamedTuple):
    """Handles of queues, on their ps.

    Attributes:
        each: The handle of each queue, for the chief's own calls. To pick one
            of the vector would make a constant on the ps, for which the whole
            program waits, because TensorFlow holds Python's global interpreter
            lock (GIL) meanwhile.
        vector: The same in a vector: functions pick the one of their worker.
    """

    each: list[tf.Tensor]
    vector: tf.Tensor


class RemoteQueues:
    """Some queues of the same kind on one ps, such as one for each worker.

    A function that takes an element waits for one without holding a thread of
    the ps. It ends with an error when the queues are closed.

    Guarantees: after `close`, no call waits, whenever it began. After `renew`,
    calls find new, empty queues. There is one set of queues at a time.
    Guarded by `_lock`: the handles, whether they are closed.

    Attributes:
        device: Full device name of the ps.
    """

    def __init__(
        self, device: str, kind: str, number: int, dtypes: Sequence[tf.DType]
    ) -> None:
        """Names the queues; the ps makes them when they are first needed.

        Args:
            device: Full device name of the ps.
            kind: The purpose of the queues, as part of their names.
            number: Number of queues.
            dtypes: Dtypes of the tensors of an element.
        """
        self.device = device
        self._kind = kind
        self._number = number
        self._dtypes = list(dtypes)
        self._connection = connection.present()
        self._lock = threading.Lock()
        self._handles: _Handles | None = None
        self._is_closed = False

    def close(self) -> None:
        """Ends calls that wait at the queues, and those that begin later."""
        with self._lock:
            self._is_closed = True
            handles = self._handles
        self._on_each(
            handles,
            lambda handle: tf.raw_ops.QueueCloseV2(
                handle=handle, cancel_pending_enqueues=True
            ),
        )

    def renew(self) -> None:
        """Replaces the queues by empty ones; no call may use them."""
        with self._lock:
            handles, self._handles = self._handles, None
            self._is_closed = False
        self._connection.part(HandleAreas).handles_have_changed()
        self._on_each(
            handles,
            lambda handle: tf.raw_ops.DestroyResourceOp(resource=handle),
        )

    def _on_each(
        self, handles: _Handles | None, function: Callable[[tf.Tensor], Any]
    ) -> None:
        """Calls a function with the handle of each queue, if it exists."""
        if handles is None or self._connection.is_over:
            return
        executor = tensorflow_execution.new_synchronous_executor()
        left = handles.each
        with (
            tensorflow_execution.executor_scope(executor),
            tf.init_scope(),
            compat.clear_device(),
            tf.device(self.device),
        ):
            for _ in range(_ATTEMPTS):
                left = [
                    handle for handle in left if not _is_done(function, handle)
                ]

    def put(self, number: Any, element: Sequence[tf.Tensor]) -> tf.Operation:
        """Puts an element into a queue; for use in a function.

        Args:
            number: Number of the queue, an integer or scalar tensor.
            element: Tensors of the queue's dtypes.

        Returns:
            The operation.
        """
        with tf.device(self.device):
            return tf.raw_ops.QueueEnqueueV2(
                handle=self._picked(number), components=list(element)
            )

    def take(self, number: Any) -> list[tf.Tensor]:
        """Waits for an element of a queue; for use in a function.

        Args:
            number: Number of the queue, an integer or scalar tensor.

        Returns:
            Tensors on the ps, of unknown shape.
        """
        with tf.device(self.device):
            element: list[tf.Tensor] = tf.raw_ops.QueueDequeueV2(
                handle=self._picked(number), component_types=self._dtypes
            )
        return element

    def size(self, number: Any) -> tf.Tensor:
        """Returns the number of elements of a queue; for use in a function.

        Args:
            number: Number of the queue, an integer or scalar tensor.
        """
        with tf.device(self.device):
            return tf.raw_ops.QueueSizeV2(handle=self._picked(number))

    def put_now(self, number: int, element: Sequence[Any]) -> None:
        """Puts an element into a queue, from the chief's own program.

        Args:
            number: Number of the queue.
            element: Values of the queue's dtypes.
        """
        handle = self._handles_now().each[number]
        with (
            # Threads without one share an executor, and with it the error.
            tensorflow_execution.own_executor(),
            tf.init_scope(),
            compat.clear_device(),
        ):
            # A constant on another task would make the whole program wait.
            with tf.device(graph_checks.CPU):
                values = [
                    tf.constant(value, dtype)
                    for value, dtype in zip(element, self._dtypes, strict=True)
                ]
            with tf.device(self.device):
                tf.raw_ops.QueueEnqueueV2(handle=handle, components=values)

    def _picked(self, number: Any) -> tf.Tensor:
        graph = compat.function_graph()
        handles = compat.capture_at_call_time(
            graph,
            lambda: self._handles_now().vector,
            compat.LateBoundHandleSpec(
                tf.TensorSpec([self._number], tf.resource), self.device
            ),
            key=("tfps-queues", self._kind, self.device, id(self)),
        )
        handles = compat.in_graph(handles, tf.compat.v1.get_default_graph())
        return tf.gather(handles, number)

    def _handles_now(self) -> _Handles:
        self._connection.require()
        with self._lock:
            if self._is_closed:
                raise tf.errors.CancelledError(
                    None, None, f"The queues on {self.device} are closed."
                )
            # Else two threads would wait at different queues.
            if self._handles is None:
                self._handles = self._made()
            return self._handles

    def _made(self) -> _Handles:
        name = f"{self._kind}_{uuid.uuid4().hex}"
        with (
            tensorflow_execution.own_executor(),
            tf.init_scope(),
            compat.clear_device(),
            tf.device(self.device),
        ):
            each = [
                tf.raw_ops.FIFOQueueV2(
                    component_types=self._dtypes,
                    shapes=[],
                    capacity=-1,
                    container=leftovers.CONTAINER,
                    shared_name=f"{name}_{number}",
                )
                for number in range(self._number)
            ]
            return _Handles(each, tf.stack(each))


def _is_done(function: Callable[[tf.Tensor], Any], handle: tf.Tensor) -> bool:
    """Calls a function with a handle; returns whether that made sense."""
    try:
        function(handle)
    except tf.errors.NotFoundError:
        return True
    except tf.errors.OpError:
        # Of a ps that is lost, and its queues with it; or of another one.
        return False
    return True
