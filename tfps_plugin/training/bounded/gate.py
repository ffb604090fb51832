"""A gate before each step of a worker: the part that runs on the worker.

On each parameter server, a worker has a queue of *tokens*, and all share a
queue of *events*. A worker takes a token before it uses variables there; when
its step is done there, it puts an event. `keeper` says who gets tokens.

The token never leaves the ps, and neither does the end of the updates: control
edges lead from one operation of the ps to another.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_captures
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.per_worker.worker_index import WorkerIndex
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.updates.remote_queues import RemoteQueues


class Gate:
    """Queues of one step function, and its part that runs on workers.

    Attributes:
        devices: Device of each ps.
        num_workers: Number of workers of the cluster.
        tokens: The tokens of each ps, a queue for each worker.
        events: The events of each ps, one queue.
        gated: What workers and ps need to make the step, once it is made.

    Threading: only the thread that traces uses `traced`; all else is safe from
    any.
    """

    def __init__(self, devices: Sequence[str], num_workers: int) -> None:
        """Prepares the queues.

        Args:
            devices: Device of each ps.
            num_workers: Number of workers of the cluster.
        """
        self.devices = list(devices)
        self.num_workers = num_workers
        self.tokens = [
            RemoteQueues(device, "tokens", num_workers, [tf.bool])
            for device in devices
        ]
        self.events = [
            RemoteQueues(device, "events", 1, [tf.int32, tf.bool])
            for device in devices
        ]
        self.gated: Any = None
        self._index = WorkerIndex()

    def close_queues(self, ps: int) -> None:
        """Ends calls that wait at the queues of a ps, now or later.

        Args:
            ps: Index of the ps.
        """
        self.tokens[ps].close()
        self.events[ps].close()

    def renew_queues(self, ps: int) -> None:
        """Replaces the queues of a ps by empty ones; no call may use them.

        Args:
            ps: Index of the ps.
        """
        self.tokens[ps].renew()
        self.events[ps].renew()

    def leave(self, worker: int, ps: int) -> None:
        """Tells a ps that a worker takes no further part.

        Args:
            worker: Index of the worker.
            ps: Index of the ps.
        """
        self.events[ps].put_now(0, [worker, False])

    def traced(self, step: Callable[[Any], Any], data: Any) -> Any:
        """Traces a step, in the function of the workers.

        Args:
            step: A function of a batch that applies gradients.
            data: The batch.

        Returns:
            What the step returns.
        """
        graph = tf.compat.v1.get_default_graph()
        index = self._index.in_function()
        takes = [tokens.take(index)[0].op for tokens in self.tokens]
        before = len(graph.get_operations())
        trace = StepTrace.current()
        trace.is_gated = True
        try:
            outputs = step(data)
        finally:
            trace.is_gated = False
        uses = _by_device(graph.get_operations()[before:])
        for device, take, events in zip(
            self.devices, takes, self.events, strict=True
        ):
            there = uses.get(device, [])
            for operation in there:
                compat.run_after(operation, [take])
            # tf.control_dependencies drops what seems to follow from a handle
            # that was captured in its context; it does not.
            compat.run_after(events.put(0, [index, True]), [take, *there])
        return outputs


def _by_device(
    operations: Sequence[tf.Operation],
) -> dict[str, list[tf.Operation]]:
    """Returns the operations on resources of each task, in their order."""
    found: dict[str, list[tf.Operation]] = {}
    if not operations:
        return found
    homes = tensorflow_captures.homes_of_tensors(operations[0].graph)
    for operation in operations:
        devices = {
            homes[id(tensor)]
            for tensor in operation.inputs
            if tensor.dtype == tf.resource and homes.get(id(tensor))
        }
        for device in devices:
            found.setdefault(device, []).append(operation)
    return found
