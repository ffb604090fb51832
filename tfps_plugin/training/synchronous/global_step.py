"""A step that all workers make together: the part that runs on each of them.

On each parameter server, a worker has a queue of *tokens* and a *mailbox*. It
takes a token before it reads variables there: the number of the global step
whose variables it may read. It puts a parcel with its gradients into the
mailbox, stamped with that number. `applier` says what becomes of them.

The token never leaves the ps: reads there wait for it by control edges. If the
worker saw it, each step would take two messages more.
"""

import functools
import sys
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras_optimizers
from tfps_plugin._compat.graph import tensorflow_captures
from tfps_plugin._compat.graph import tensorflow_graphs
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.training.synchronous import assignments
from tfps_plugin.training.synchronous import norms
from tfps_plugin.training.synchronous.backup import referee
from tfps_plugin.training.synchronous.backup.referee import Referee
from tfps_plugin.training.synchronous.norms import SharedNorms
from tfps_plugin.training.synchronous.parcels import Applied
from tfps_plugin.training.synchronous.parcels import Assigned
from tfps_plugin.training.synchronous.parcels import ParcelLayout
from tfps_plugin.training.synchronous.parcels import Parcels
from tfps_plugin.training.synchronous.sums.shared_sums import SharedSums
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.methods import self_assignment
from tfps_plugin.variables.per_worker.worker_index import WorkerIndex
from tfps_plugin.variables.states import combining
from tfps_plugin.variables.states.sync_rules import Change
from tfps_plugin.variables.step_trace import Exchange
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.updates.remote_queues import RemoteQueues

# Stamp of the parcel that says that a worker takes no further part.
LEFT = referee.LEFT
# Tensors of a parcel before those of its layout: stamp, number of examples.
_HEADER = (tf.int64, tf.float32)


class _Tokens(NamedTuple):
    """Tokens of one step, on the worker.

    Attributes:
        index: Index of the worker.
        stamps: The number of the step, on each ps.
        takes: The operations that wait for it there.
    """

    index: tf.Tensor
    stamps: list[tf.Tensor]
    takes: list[tf.Operation]


class GlobalStep:
    """Queues of one step function, and its part that runs on workers.

    Attributes:
        devices: Device of each ps.
        num_workers: Number of workers of the cluster.
        tokens: The tokens of each ps, a queue for each worker.
        mailboxes: The mailboxes of each ps, a queue for each worker; empty
            until the step is traced.
        layouts: Layouts of the parcels of each ps, likewise.
        norms: Norms that parameter servers compute together; None: none.
        sums: Sums over workers that the step itself computes with.
        referee: Decides whose parcels count; None: those of all members do.
        num_backup: Number of members whose parcels a step does without.
        number: The number of the step, on the worker, in the function of the
            step; None without a referee.
        together: What workers and ps need to make the step, once it is made.

    Threading: only the thread that traces uses `traced` and `push`; all else
    is safe from any.
    """

    def __init__(
        self, devices: Sequence[str], num_workers: int, num_backup: int = 0
    ) -> None:
        """Prepares the queues.

        Args:
            devices: Device of each ps.
            num_workers: Number of workers of the cluster.
            num_backup: Number of members whose parcels a step does without.
        """
        self.devices = list(devices)
        self.num_workers = num_workers
        self.tokens = [
            RemoteQueues(device, "tokens", num_workers, [tf.int64])
            for device in devices
        ]
        self.mailboxes: list[RemoteQueues] = []
        self.layouts: list[ParcelLayout] = []
        self.norms: SharedNorms | None = None
        self.sums = SharedSums(devices, num_workers)
        self.num_backup = num_backup
        self.referee = (
            Referee(devices, num_workers, num_backup) if num_backup else None
        )
        self.number: tf.Tensor | None = None
        self.together: Any = None
        self._index = WorkerIndex()
        self._applied: list[Applied] = []
        self._assigned: list[Assigned] = []
        # Those of them that nobody has called a mean.
        self._means: list[Change] = []
        # Number of operations before the assignment of each handle, by its id.
        self._assigned_at: dict[int, int] = {}
        # Number of operations before the first gradients were applied.
        self._first_push = 0
        self._examples: Callable[[], tf.Tensor] = lambda: tf.ones([])

    def close_queues(self, ps: int) -> None:
        """Ends calls that wait at the queues of a ps, now or later.

        Args:
            ps: Index of the ps.
        """
        self.tokens[ps].close()
        self.mailboxes[ps].close()
        self.sums.close(ps)
        for each in (self.norms, self.referee):
            if each is not None:
                each.close(ps)

    def renew_queues(self, ps: int) -> None:
        """Replaces the queues of a ps by empty ones; no call may use them.

        Args:
            ps: Index of the ps.
        """
        self.tokens[ps].renew()
        self.mailboxes[ps].renew()
        self.sums.renew(ps)
        for each in (self.norms, self.referee):
            if each is not None:
                each.renew(ps)

    def leave(self, worker: int, ps: int) -> None:
        """Tells a ps that a worker takes no further part.

        Args:
            worker: Index of the worker.
            ps: Index of the ps.
        """
        nothing = [
            np.zeros(
                [n or 0 for n in part.spec.shape],
                part.spec.dtype.as_numpy_dtype,
            )
            for part in self.layouts[ps].parts
        ]
        self.mailboxes[ps].put_now(worker, [LEFT, 0.0, *nothing])
        self.sums.leave(worker, ps)
        if self.referee is not None:
            self.referee.leave(worker, ps)

    @property
    def functions_of_chief(
        self,
    ) -> list[tf.types.experimental.ConcreteFunction]:
        """The functions that the chief runs beside the steps of a span."""
        return [
            *([] if self.norms is None else [self.norms.relay]),
            *([] if self.referee is None else [self.referee.function]),
        ]

    # For use in the function of a step.

    reads_exactly = True

    def traced(self, step: Callable[[Any], Any], data: Any) -> Any:
        """Traces a step, in the function of the workers.

        Args:
            step: A function of a batch that applies gradients.
            data: The batch.

        Returns:
            What the step returns.

        Raises:
            UnsupportedError: If workers cannot make the step together.
        """
        self._examples = functools.partial(num_examples, data)
        tokens = self._take_tokens()
        outputs, operations = self._run(step, data, self)
        if not self._applied:
            raise errors.UnsupportedError(
                "A synchronous step has to apply gradients, and this one does "
                "not. Expected a call of optimizer.apply(), outside of "
                "conditions and loops. Received: none. Call it, or train with "
                "consistency=tfps.Async()."
            )
        self._end(tokens, outputs, operations, num_examples(data))
        return outputs

    def traced_if_it_applies(
        self,
        function: Callable[[], Any],
        exchange: Exchange,
        examples: Callable[[], tf.Tensor],
    ) -> Any:
        """Traces a function of workers, as a step if it applies gradients.

        Args:
            function: The function.
            exchange: Receives its changes, and passes them on to this step.
            examples: Returns the number of examples; called after `function`,
                and by `all_reduce`.

        Returns:
            What the function returns.
        """
        self._examples = examples
        outputs, operations = self._run(lambda _: function(), None, exchange)
        if self._applied:
            # Only now is it known that there is something to wait for.
            self._end(self._take_tokens(), outputs, operations, examples())
        return outputs

    @property
    def has_applied(self) -> bool:
        """True if the step that is traced has applied gradients."""
        return bool(self._applied)

    def _run(
        self, step: Callable[[Any], Any], data: Any, exchange: Exchange
    ) -> tuple[Any, list[tf.Operation]]:
        """Traces the user's part; returns its results and operations."""
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        trace = StepTrace.current()
        trace.exchange = exchange
        try:
            outputs = step(data)
        finally:
            trace.exchange = None
        return outputs, graph.get_operations()[before:]

    def _take_tokens(self) -> _Tokens:
        index = self._index.in_function()
        stamps, takes = [], []
        for tokens in self.tokens:
            (stamp,) = tokens.take(index)
            takes.append(stamp.op)
            with tf.device(tokens.device):
                stamps.append(tf.ensure_shape(stamp, []))
        return _Tokens(index, stamps, takes)

    def _end(
        self,
        tokens: _Tokens,
        outputs: Any,
        operations: Sequence[tf.Operation],
        examples: tf.Tensor,
    ) -> None:
        if self.num_workers > 1:
            combining.require_means(
                self._means,
                [each.variable for each in self._assigned],
                [
                    outputs,
                    [each.value for each in self._assigned],
                    [each.gradients for each in self._applied],
                ],
                who=f"{self.num_workers} workers under tfps.Sync()",
                advice="Train by fit() with tfps.Async(), where such steps "
                "follow one another",
            )
        sums = self.sums.operations
        self._read_after(
            tokens.takes, [each for each in operations if each not in sums]
        )
        self._send(tokens, examples)
        if self.referee is not None:
            # It comes with what the worker reads there.
            with tf.device(graph_checks.CPU):
                self.number = tf.identity(tokens.stamps[0])

    def push(
        self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> None:
        """Takes the gradients of one `optimizer.apply`."""
        graph = _graph_of_step(f"optimizer.apply() of {optimizer.name!r}")
        if not self._applied:
            self._first_push = len(graph.get_operations())
        for variable in variables:
            value = keras_optimizers.value_of(variable)
            if not isinstance(value, ShardedVariable | RemoteVariable):
                raise errors.UnsupportedError(
                    "Synchronous training updates variables on parameter "
                    "servers. Expected a variable that was created in "
                    "strategy.scope(). Received: variable="
                    f"{keras_optimizers.path_of(variable)!r} on {value.device}"
                )
        self._applied.append(
            Applied(optimizer, list(gradients), list(variables))
        )

    def assign(self, variable: Any, method: str, value: Any) -> None:
        """Takes a value that the step assigns to a variable."""
        graph = _graph_of_step(f"{method} of {variable.name!r}")
        if any(each.variable is variable for each in self._assigned):
            raise errors.UnsupportedError(
                "A synchronous step assigns each variable once: it does not "
                "see its own changes. Received: a second assignment to "
                f"{variable.name!r}, as of a layer that is called twice. "
                "Assign it once, or train with consistency=tfps.Async()."
            )
        value = tf.convert_to_tensor(value, variable.dtype)
        if method == "assign":
            # What Keras makes of `variable.assign_add(delta)`.
            delta = assignments.as_addition(variable, value)
            if delta is not None:
                method, value = "assign_add", delta
        how = combining.how_to_combine(variable, method, value)
        if how == "mean" and not combining.says_how(variable):
            others = self_assignment.others_of(variable, value)
            self._means.append(Change(variable, value, others))
        value = tf.broadcast_to(value, variable.shape)
        self._assigned.append(Assigned(variable, method, value, how))
        for handle in assignments.handles_of(variable):
            self._assigned_at[id(handle)] = len(graph.get_operations())

    def all_reduce(
        self, reduce_op: Any, values: Sequence[Any]
    ) -> list[tf.Tensor]:
        """Returns sums or means of values over all workers."""
        if self.num_backup:
            raise errors.UnsupportedError(
                "With backup workers, nobody knows in the middle of a step "
                "whose gradients will count, so a sum over workers cannot be "
                "right. Expected a step without all_reduce(), for example of "
                "a BatchNormalization with synchronized=True. Received: "
                f"backup_workers={self.num_backup}. Leave all_reduce() out, "
                "or train with consistency=tfps.Sync()."
            )

        def member() -> tuple[tf.Tensor, tf.Tensor]:
            _graph_of_step("all_reduce(), or its gradient,")
            return self._index.in_function(), self._examples()

        return self.sums.all_reduce(reduce_op, values, member)

    def all_gather(self) -> None:
        """Refuses the values of all workers, one by one."""
        raise errors.UnsupportedError(
            "Workers that make a synchronous step together see sums and means "
            "of their values only. Expected all_reduce(). Received: "
            "all_gather(). Leave it out, or train with "
            "consistency=tfps.Async()."
        )

    def _send(self, tokens: _Tokens, num_examples: tf.Tensor) -> None:
        """Puts a parcel into the mailbox on each ps."""
        parcels = Parcels(
            self._applied, self._assigned, self.devices, num_examples
        )
        self._applied, self._assigned, self._means = [], [], []
        self._assigned_at = {}
        for ps, device in enumerate(self.devices):
            layout = parcels.layouts[device]
            mailboxes = RemoteQueues(
                device,
                "mail",
                self.num_workers,
                [*_HEADER, *(part.spec.dtype for part in layout.parts)],
            )
            self.mailboxes.append(mailboxes)
            self.layouts.append(layout)
            sent = mailboxes.put(
                tokens.index,
                [tokens.stamps[ps], num_examples, *parcels.tensors[device]],
            )
            for group in self.sums.groups_on(ps):
                for each in group:
                    each.run_within(tokens.takes[ps], sent, group)
            if self.referee is not None and ps == 0:
                arrival = self.referee.arrive(tokens.index, tokens.stamps[ps])
                # Not by `tf.control_dependencies`: only the choice of the
                # queue would wait, which is the same in every step.
                compat.run_after(arrival, [sent])
        if norms.are_shared(self.layouts):
            self.norms = SharedNorms(self.devices)

    def _read_after(
        self, takes: Sequence[tf.Operation], operations: Sequence[tf.Operation]
    ) -> None:
        """Makes operations on variables wait for the tokens of their ps."""
        graph = tf.compat.v1.get_default_graph()
        places = {each: n for n, each in enumerate(graph.get_operations())}
        homes = tensorflow_captures.homes_of_tensors(graph)
        for operation in operations:
            first_change = min(
                (
                    self._assigned_at.get(id(tensor), sys.maxsize)
                    for tensor in operation.inputs
                ),
                default=sys.maxsize,
            )
            is_late = places[operation] >= min(self._first_push, first_change)
            devices = {
                homes[id(tensor)]
                for tensor in operation.inputs
                if tensor.dtype == tf.resource and homes.get(id(tensor))
            }
            waits = [
                take
                for take, device in zip(takes, self.devices, strict=True)
                if device in devices
            ]
            if waits and is_late:
                raise errors.UnsupportedError(
                    "A synchronous step sees its own changes in the next step "
                    "only. Expected no use of a variable on a parameter server "
                    "after optimizer.apply(), or after an assignment to it. "
                    f"Received: the operation {operation.name!r}. Read the "
                    "variable before, or train with consistency=tfps.Async()."
                )
            if waits:
                compat.run_after(operation, waits)


def num_examples(data: Any) -> tf.Tensor:
    """Returns the number of examples of a batch, as a float32 scalar.

    Args:
        data: A nested structure of tensors. The first one that is no scalar
            has the examples along its first axis.
    """
    for part in tf.nest.flatten(data):
        if isinstance(part, tf.RaggedTensor):
            return tf.cast(part.nrows(), tf.float32)
        if isinstance(part, tf.SparseTensor):
            return tf.cast(part.dense_shape[0], tf.float32)
        if isinstance(part, tf.Tensor) and part.shape.rank != 0:
            return tf.cast(tf.shape(part)[0], tf.float32)
    return tf.ones([])


def _graph_of_step(what: str) -> tf.Graph:
    """Returns the graph of the step; refuses the inside of a condition."""
    graph = tf.compat.v1.get_default_graph()
    if StepTrace.of_graph(graph).exchange is None or graph is not (
        tensorflow_graphs.outermost_function(graph)
    ):
        raise errors.UnsupportedError(
            "Workers make a synchronous step together only if all of them "
            "make the same changes. Expected a change outside of conditions, "
            f"loops and inner functions. Received: {what} inside of one. Move "
            "it out, or train with consistency=tfps.Async()."
        )
    return graph
