"""Emission of a function and its messages into a new graph."""

import logging
import re
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_graphs as compat
from tfps_plugin._compat.graph import tensorflow_variables as variables_compat
from tfps_plugin.transport import packing
from tfps_plugin.transport import places
from tfps_plugin.transport import row_packing
from tfps_plugin.transport import staging
from tfps_plugin.transport import waves
from tfps_plugin.transport.explanation import Sent
from tfps_plugin.transport.flat_function import FlatFunction
from tfps_plugin.transport.staging import StagedHandle
from tfps_plugin.transport.waves import Message
from tfps_plugin.transport.waves import Node
from tfps_plugin.transport.waves import Output
from tfps_plugin.variables.lookup import graph_checks

_logger = logging.getLogger("tfps_plugin.transport")


class Emission:
    """A function that is emitted into a new graph.

    Attributes:
        graph: The new graph, complete.
        sent: The messages that it sends.
    """

    def __init__(
        self,
        old: compat.FuncGraph,
        flat: FlatFunction,
        nodes: Sequence[Node],
        devices: Sequence[str],
        plan: waves.Plan,
        inner: Mapping[int, Mapping[str, Any]],
        *,
        unasked: Collection[int],
        in_order: Collection[int],
        staged: Mapping[Output, StagedHandle],
        is_inner: bool,
    ) -> None:
        """Emits the function.

        Args:
            old: Graph of the function as it was traced.
            flat: Its operations.
            nodes: The same operations as nodes of the plan.
            devices: Their devices.
            plan: Messages, and the wave of each node.
            inner: New functions for those that an operation runs.
            unasked: Operations that run although nothing waits for them.
            in_order: Loops whose iterations must not overlap on one task.
            staged: Arguments that are taken from their parameter servers.
            is_inner: Whether a loop or a branch runs the function. It still
                takes these arguments and returns them, so that loops see that
                they do not change.
        """
        self.sent: list[Sent] = []
        self._flat = flat
        self._nodes = nodes
        self._devices = devices
        self._inner = inner
        self._unasked = unasked
        self._in_order = in_order
        self._words = (
            packing.WHOLE_NUMBERS
            if places.has_accelerators()
            else packing.WORDS
        )
        self._is_inner = is_inner
        self.graph, arguments = compat.new_graph(
            old,
            # With "<lambda>" in the name, TensorFlow's errors would not say
            # where the program made the operation that failed.
            f"fused_{re.sub(r'[^A-Za-z0-9_.]', '', old.name)}",
            without=() if is_inner else {output.node for output in staged},
        )
        self._made: dict[int, tf.Operation] = {}
        # Operations that need nothing from elsewhere, not even a handle.
        self._made_here = _made_here(flat, nodes, staged)
        self._tensors: dict[Output, tf.Tensor] = {
            Output(number, 0): tensor for number, tensor in arguments.items()
        }
        # In the body of a loop or branch, the first message to each place.
        self._first: dict[str, tf.Operation] = {}
        self._copies: dict[tuple[int, str], tf.Tensor] = {}
        self._arrived: dict[tuple[Output, str], tf.Tensor] = {}
        self._arrivals: dict[tuple[int, str], tf.Operation] = {}
        self._emit(plan, staged, old)
        self._begin_with_messages()
        self.graph.control_outputs = [
            self._made[number]
            for number in flat.controls
            if nodes[number].place is not None and number not in unasked
        ]

    def _emit(
        self,
        plan: waves.Plan,
        staged: Mapping[Output, StagedHandle],
        old: compat.FuncGraph,
    ) -> None:
        """Emits operations and messages, wave by wave, and the outputs."""
        handed_on = dict(self._tensors)
        # Only arguments wait for nothing. The others have control inputs.
        with self.graph.as_default():
            self._tensors.update(staging.take(staged, old))
            for step in plan.in_order():
                if isinstance(step, Message):
                    self._send(step)
                elif step >= self._flat.num_arguments:
                    self._make(step)
            self.graph.outputs = [
                handed_on[output]
                if output in handed_on
                else self._tensor(output, places.HERE)
                if self._nodes[output.node].place is None
                else self._tensors[output]
                for output in self._flat.outputs
            ]

    def _begin_with_messages(self) -> None:
        """Makes operations without inputs elsewhere wait for a first message.

        TensorFlow would make them wait for the loop or branch that runs the
        function, which takes another message to each place in each iteration.
        """
        for operation in self.graph.get_operations():
            if operation.inputs or operation.control_inputs:
                continue
            first = self._first.get(places.place(operation.device))
            if first is not None and operation.type != "Placeholder":
                variables_compat.run_after(operation, [first])

    def _make(self, number: int) -> None:
        flat = self._flat.operations[number]
        place = self._nodes[number].place
        if place is None:
            # A copy is made in each place that reads it.
            return
        stays = self._nodes[number].stays
        operation = compat.copy_operation(
            flat.operation,
            self.graph,
            [
                self._tensors[output]
                if output in stays
                else self._tensor(output, place)
                for output in flat.inputs
            ],
            self._controls(number, place),
            self._devices[number],
            self._inner.get(number),
        )
        if number in self._unasked:
            compat.run_unasked(operation)
        if number in self._in_order:
            compat.run_rounds_in_order(operation)
        self._made[number] = operation
        for index, tensor in enumerate(operation.outputs):
            self._tensors[Output(number, index)] = tensor

    def _controls(self, number: int, place: str) -> list[tf.Operation]:
        """Returns control inputs, at the operation's own place if possible."""
        node = self._nodes[number]
        controls = [
            self._made[earlier]
            if earlier in node.stays
            else self._arrivals.get((earlier, place), self._made[earlier])
            for earlier in node.controls
            if self._nodes[earlier].place is not None
        ]
        # A lock waits for the inputs of its section.
        own = self._flat.operations[number].inputs
        controls += [
            self._arrived[output, place].op
            for output in node.inputs[len(own) :]
            if (output, place) in self._arrived
        ]
        return list(dict.fromkeys(controls))

    def _tensor(self, output: Output, place: str) -> tf.Tensor:
        """Returns a tensor as a place reads it."""
        if output in self._tensors:
            return self._arrived.get((output, place), self._tensors[output])
        copy = self._copies.get((output.node, place))
        if copy is None:
            operation = self._flat.operations[output.node].operation
            copy = compat.copy_operation(
                operation,
                self.graph,
                [],
                [],
                places.cpu_of(place) if place else "",
            ).outputs[0]
            self._copies[output.node, place] = copy
        return copy

    def _send(self, message: Message) -> None:
        """Packs values where they were made, and unpacks them on arrival."""
        tensors = [self._tensors[output] for output in message.outputs]
        together = [
            output
            for output, tensor in zip(message.outputs, tensors, strict=True)
            if packing.is_packable(tensor)
        ]
        num_alone = len(tensors) - len(together)
        if num_alone:
            _logger.debug(
                "%d values from %r to %r travel by themselves: they are large, "
                "or of a type or rank that cannot be packed.",
                num_alone,
                message.source,
                message.destination,
            )
        num_together = len(together) + len(message.controls)
        if num_together > 1 or (num_together and self._begins(message)):
            num_alone += self._send_together(message, together)
        else:
            num_alone += num_together
        sized = [t for t in tensors if t.shape.is_fully_defined()]
        self.sent.append(
            Sent(
                message.source,
                message.destination,
                message.wave,
                num_tensors=len(tensors),
                num_controls=len(message.controls),
                num_parcels=num_alone,
                num_bytes=sum(
                    t.shape.num_elements() * (t.dtype.size or 1) for t in sized
                ),
                num_unsized=len(tensors) - len(sized),
            )
        )

    def _send_together(
        self, message: Message, outputs: Sequence[Output]
    ) -> int:
        """Emits the transfer of tensors; returns how many parcels it takes."""
        source = places.cpu_of(message.source) if message.source else ""
        if all(
            places.is_on_cpu(self._devices[output.node]) for output in outputs
        ):
            source = source or graph_checks.CPU
        destination = (
            places.cpu_of(message.destination) if message.destination else ""
        )
        parcels = [self._tensors[output] for output in outputs]
        way = None
        if len(parcels) > 1:
            way = row_packing.best(parcels, self._words)
        with tf.device(None), tf.device(source):
            if way is not None:
                parcels = way.pack(parcels)
            parcels = self._after_all(
                parcels, [self._made[number] for number in message.controls]
            )
        num_parcels = len(parcels)
        with tf.device(None), tf.device(destination):
            begins = self._begins(message)
            if message.controls or begins:
                arrival = tf.identity(parcels[0])
                for number in message.controls:
                    self._arrivals[number, message.destination] = arrival.op
                if begins:
                    self._first[message.destination] = arrival.op
                parcels = [arrival, *parcels[1:]]
            if way is not None:
                parcels = way.unpack(parcels)
        for output, tensor in zip(outputs, parcels, strict=False):
            self._arrived[output, message.destination] = tensor
        return num_parcels

    def _begins(self, message: Message) -> bool:
        """Returns whether a message may tell a place that an iteration begins.

        Its values must not depend on anything that waits for such a message
        itself, in any place. A loop on the worker waits for one if an input is
        a handle of a parameter server, and so do the loop's results.
        """
        return (
            self._is_inner
            and message.source == places.HERE
            and message.destination != places.HERE
            and message.destination not in self._first
            and all(o.node in self._made_here for o in message.outputs)
            and all(number in self._made_here for number in message.controls)
        )

    def _after_all(
        self,
        parcels: Sequence[tf.Tensor],
        controls: Sequence[tf.Operation],
    ) -> list[tf.Tensor]:
        """Makes the first parcel leave after some operations.

        If there is no parcel, it makes an empty one.
        """
        if not controls:
            return list(parcels)
        with self.graph.control_dependencies(list(controls)):
            if not parcels:
                return [tf.zeros([], tf.bool)]
            return [tf.identity(parcels[0]), *parcels[1:]]


def _made_here(
    flat: FlatFunction,
    nodes: Sequence[Node],
    staged: Collection[Output],
) -> set[int]:
    """Returns operations of the worker that need nothing from elsewhere."""
    taken = {output.node for output in staged}
    made: set[int] = set()
    for number, node in enumerate(nodes):
        before = {output.node for output in node.inputs}
        before.update(node.controls)
        if number < flat.num_arguments:
            is_here = number not in taken
        else:
            is_here = node.place in (None, places.HERE)
        if is_here and before <= made:
            made.add(number)
    return made
