"""Rewrites one function: runs the passes, plans messages, emits a new graph."""

import collections
import itertools
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_graphs as compat
from tfps_plugin.transport import explanation
from tfps_plugin.transport import places
from tfps_plugin.transport import sections
from tfps_plugin.transport import soundness
from tfps_plugin.transport import waves
from tfps_plugin.transport.emission import Emission
from tfps_plugin.transport.explanation import Body
from tfps_plugin.transport.flat_function import FlatFunction
from tfps_plugin.transport.passes import common_subexpressions
from tfps_plugin.transport.passes import loop_overlap
from tfps_plugin.transport.passes import step_order
from tfps_plugin.transport.passes.inlining import flatten
from tfps_plugin.transport.staging import StagedHandle
from tfps_plugin.transport.waves import Node
from tfps_plugin.transport.waves import Output

# Operations that run functions, with the number of inputs before those of the
# functions.
_RUNS_FUNCTIONS = {
    "Case": 1,
    "If": 1,
    "StatelessCase": 1,
    "StatelessIf": 1,
    "StatelessWhile": 0,
    "While": 0,
}
# Loops and branches that message other places last two waves: there and back.
_LASTS = 2
# Operations that run Python code, which may use anything.
_RUN_PYTHON = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})
# Larger constants are sent, as TensorFlow would.
_MOST_BYTES_COPIED = 64 << 10


class Rewriting:
    """Rewrites one function, and those that its loops and branches run.

    Attributes:
        graph: The new function; None if it would be like the old one.
        bodies: The messages of the function, its loops and branches.
        unasked: Operations elsewhere that the end of the function does not
            wait for.
    """

    def __init__(
        self,
        graph: compat.FuncGraph,
        homes: Mapping[int, str],
        name: str,
        *,
        staged: Mapping[int, StagedHandle] | None = None,
        is_inner: bool = False,
        overlaps: bool = False,
    ) -> None:
        """Rewrites the function.

        Args:
            graph: Graph of the function.
            homes: Devices of resources, by the number of the argument.
            name: Name of the function, for explanations.
            staged: Handles that the function takes from their parameter
                servers instead, by the number of the argument.
            is_inner: Whether a loop or a branch runs it.
            overlaps: Whether the worker may go on before operations of the
                function elsewhere have ended.
        """
        self._name = name
        self._is_inner = is_inner
        self._known_devices: dict[tf.Operation, frozenset[str]] = {}
        self._staged = {
            Output(n, 0): each for n, each in (staged or {}).items()
        }
        self._take(flatten(graph, steps_apart=overlaps), homes)
        if any(flat.step for flat in self._flat.operations):
            in_places = [node.place for node in self._nodes()]
            self._take(step_order.in_order(self._flat, in_places), homes)
        self._take(common_subexpressions.merge(self._flat), homes)
        self.bodies: list[Body] = []
        self.unasked: frozenset[int] = frozenset()
        self._in_order: set[int] = set()
        inner = self._rewrite_inner()
        nodes = self._nodes()
        num_crossings = waves.num_crossings(nodes)
        if overlaps:
            nodes, self.unasked = loop_overlap.without_answers(
                nodes,
                self._flat.controls,
                self._effects(),
                here=places.HERE,
            )
        nodes = sections.before_locks(nodes, self._locks())
        plan = waves.plan(nodes)
        self.graph: compat.FuncGraph | None = None
        if not plan.messages and not inner:
            return
        emission = Emission(
            graph,
            self._flat,
            nodes,
            self._devices,
            plan,
            inner,
            unasked=self.unasked,
            in_order=self._in_order,
            staged=self._staged,
            is_inner=is_inner,
        )
        soundness.check(emission.graph, graph)
        self.graph = emission.graph
        if num_crossings:
            body = Body(
                name,
                num_crossings,
                tuple(emission.sent),
                operations=self._operations(nodes),
            )
            self.bodies.insert(0, body)

    def _take(self, flat: FlatFunction, homes: Mapping[int, str]) -> None:
        """Takes over a list of operations, and finds their devices."""
        self._flat = flat
        # Devices of resources, by the outputs that hold them.
        self._homes = {Output(n, 0): device for n, device in homes.items()}
        self._devices = []
        for number in range(len(flat.operations)):
            self._devices.append(self._device_of(number))

    def _nodes(self) -> list[Node]:
        return [self._node(number) for number in range(len(self._devices))]

    def _operations(self, nodes: Sequence[Node]) -> tuple[tuple[str, int], ...]:
        """Returns the number of operations at each place."""
        counts = collections.Counter(
            node.place
            for node in nodes[self._flat.num_arguments :]
            if node.place is not None
        )
        return tuple(sorted(counts.items()))

    def _device_of(self, number: int) -> str:
        """Returns the device of an operation; records homes of resources."""
        flat = self._flat.operations[number]
        device = flat.device
        if number < self._flat.num_arguments:
            return device
        homes = [self._homes[o] for o in flat.inputs if o in self._homes]
        if (
            homes
            and not places.job(device)
            and not compat.runs_functions(flat.operation)
        ):
            # Like TensorFlow, place it with the resource that it works on.
            device = homes[0]
            soundness.check_device(flat.operation, device, homes)
        if places.job(device):
            for index, tensor in enumerate(flat.operation.outputs):
                if tensor.dtype == tf.resource:
                    self._homes[Output(number, index)] = device
        return device

    def _node(self, number: int) -> Node:
        flat = self._flat.operations[number]
        if number < self._flat.num_arguments:
            resource = flat.operation.outputs[0].dtype == tf.resource
            return Node(None if resource else places.HERE)
        if _is_copied(flat.operation):
            return Node(None)
        return Node(
            places.place(self._devices[number]),
            flat.inputs,
            flat.controls,
            lasts=_LASTS if self._asks_elsewhere(number) else 0,
        )

    def _asks_elsewhere(self, number: int) -> bool:
        """Returns whether a loop or branch of the worker sends messages."""
        flat = self._flat.operations[number]
        if (
            flat.operation.type not in _RUNS_FUNCTIONS
            or places.place(self._devices[number]) != places.HERE
        ):
            return False
        devices = itertools.chain(
            (self._homes[o] for o in flat.inputs if o in self._homes),
            self._devices_within(flat.operation),
        )
        return any(places.place(device) != places.HERE for device in devices)

    def _devices_within(self, operation: tf.Operation) -> Iterator[str]:
        """Yields the devices of the operations in a loop or branch."""
        if operation not in self._known_devices:
            self._known_devices[operation] = frozenset(
                inner.device
                for graph in compat.functions_of(operation).values()
                for inner in compat.operations_within(graph)
            )
        yield from self._known_devices[operation]

    def _locks(self) -> dict[int, list[int]]:
        """Returns the operations that release each lock, by its acquisition."""
        locks: dict[int, list[int]] = {}
        for number, flat in enumerate(self._flat.operations):
            if flat.operation.type == sections.TAKES_LOCK:
                locks[number] = []
            elif flat.operation.type == sections.GIVES_BACK_LOCK:
                locks[flat.inputs[0].node].append(number)
        return locks

    def _effects(self) -> set[int]:
        """Returns the operations that have side effects."""
        return {
            number
            for number, flat in enumerate(self._flat.operations)
            if compat.is_stateful(flat.operation)
        }

    def _may_overlap(self, loop: int) -> bool:
        """Returns whether nothing after a loop may need its remote effects."""
        if self._is_inner:
            return False
        later = {loop}
        for number in range(loop + 1, len(self._flat.operations)):
            flat = self._flat.operations[number]
            before = {output.node for output in flat.inputs}
            if later.isdisjoint(before.union(flat.controls)):
                continue
            later.add(number)
            if (
                places.place(self._devices[number]) != places.HERE
                or compat.runs_functions(flat.operation)
                or flat.operation.type in _RUN_PYTHON
            ):
                return False
        return True

    def _rewrite_inner(self) -> dict[int, dict[str, Any]]:
        """Returns new functions for those that loops and branches run."""
        inner: dict[int, dict[str, Any]] = {}
        for number, flat in enumerate(self._flat.operations):
            first = _RUNS_FUNCTIONS.get(flat.operation.type)
            if first is None:
                continue
            homes = {
                place: self._homes[output]
                for place, output in enumerate(flat.inputs[first:])
                if output in self._homes
            }
            staged = {
                place: self._staged[output]
                for place, output in enumerate(flat.inputs[first:])
                if output in self._staged
            }
            for name, graph in compat.functions_of(flat.operation).items():
                full_name = f"{self._name}, {flat.operation.type} {name}"
                try:
                    rewriting = Rewriting(
                        graph,
                        homes,
                        full_name,
                        staged=staged,
                        is_inner=True,
                        overlaps=name == "body" and self._may_overlap(number),
                    )
                except Exception:
                    # This body runs without fusion; the rest is rewritten.
                    explanation.warn_of(full_name)
                    continue
                # TensorFlow runs all of it where the loop or branch is.
                whole = places.place(self._devices[number])
                self.bodies += [
                    body
                    for body in rewriting.bodies
                    if not body.is_within(whole)
                ]
                if rewriting.unasked:
                    self._in_order.add(number)
                if rewriting.graph is not None:
                    inner.setdefault(number, {})[name] = compat.as_function(
                        rewriting.graph, graph
                    )
        return inner


def _is_copied(operation: tf.Operation) -> bool:
    """Returns whether every place gets a copy, as of small constants."""
    if operation.type != "Const":
        return False
    tensor = operation.outputs[0]
    if not tensor.shape.is_fully_defined():
        return False
    num_bytes = tensor.shape.num_elements() * (tensor.dtype.size or 1)
    return bool(num_bytes <= _MOST_BYTES_COPIED)
