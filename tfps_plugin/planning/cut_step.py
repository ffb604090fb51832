"""A traced step, cut where tensors travel between tasks.

What remains is the part of its worker, as a graph of its own with a placeholder
for each tensor that another task sends.
"""

import collections
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_captures
from tfps_plugin._compat.graph import tensorflow_graphs
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.transport import places
from tfps_plugin.variables.kinds.tape_anchor import TapeAnchor

# Operations that look at the sizes of tensors alone.
_SIZES = frozenset({"Rank", "Shape", "ShapeN", "Size"})
# Shapes have few numbers.
_MOST_SIZES = 16
# Operations of tables that words are looked up in.
_WORDS = "LookupTable"


class CutStep:
    """The worker's part of a traced step.

    Attributes:
        graph: The graph of the whole step.
        feeds: Values of the batch and of captured constants, by the names of
            their tensors.
        arriving: Tensors of other tasks, and of variables, that the worker
            computes with, by name.
        not_sent: Names of those of which it only takes the sizes.
        tokens: Names of those that stand for whole tables, without rows.
        leaving: Tensors of the worker that each parameter server gets.
        kept: Tensors of the worker that it keeps: metrics, results.

    Threading: one thread.
    """

    def __init__(self, step: Any, batch: Any) -> None:
        """Cuts the step.

        Args:
            step: The traced step of one batch, a concrete function.
            batch: A batch, of the structure that the step takes.

        Raises:
            PlanError: If the step cannot be cut, as one whose loops ask
                parameter servers.
        """
        self.graph = step.graph
        for operation in self.graph.get_operations():
            _refuse(operation)
        self.feeds = _batch_feeds(step, batch)
        # Places of variables, by the arguments that hold them.
        self._homes = {
            self.graph.inputs[number].name: places.place(device)
            for number, device in tensorflow_captures.homes_of_captures(
                self.graph
            ).items()
        }
        self._foreign: set[str] = set()
        # Operations on sizes, which run here whatever their place.
        self._sizes: set[str] = set()
        for operation in self.graph.get_operations():
            if not _is_foreign(operation):
                continue
            if operation.type in _SIZES or self._is_of_sizes(operation):
                self._sizes.add(operation.name)
            else:
                self._foreign.add(operation.name)
        self.arriving: dict[str, tf.Tensor] = {}
        self.not_sent: set[str] = set()
        self.leaving: dict[str, dict[str, tf.Tensor]] = collections.defaultdict(
            dict
        )
        self.kept = [
            t for t in self.graph.outputs if t.op.name not in self._foreign
        ]
        self._find_crossings()
        self.tokens = self._find_tokens()

    def parameter_servers(self) -> list[str]:
        """Returns the names of the tasks that the step asks."""
        found = map(self.place, self.graph.get_operations())
        return sorted(
            {each for each in found if places.job(each) == PARAMETER_SERVER}
        )

    def place(self, operation: tf.Operation) -> str:
        """Returns the task of an operation: its own, or its variable's."""
        if operation.device:
            return places.place(operation.device)
        homes = (self._homes.get(each.name) for each in operation.inputs)
        return next(filter(None, homes), places.HERE)

    def _is_of_sizes(self, operation: tf.Operation) -> bool:
        """Returns whether an operation only computes with sizes."""
        tensors = [*operation.inputs, *operation.outputs]
        return (
            bool(operation.inputs)
            and not tensorflow_graphs.is_stateful(operation)
            and all(
                t.dtype.is_integer
                and t.shape.is_fully_defined()
                and t.shape.num_elements() <= _MOST_SIZES
                for t in tensors
            )
            and all(
                t.op.name in self._sizes or t.op.type == "Const"
                for t in operation.inputs
            )
        )

    def _find_crossings(self) -> None:
        used = set()
        for operation in self.graph.get_operations():
            foreign = operation.name in self._foreign
            for tensor in operation.inputs:
                if tensor.dtype == tf.resource:
                    continue
                if tensor.name in self.feeds:
                    from_here = True
                else:
                    from_here = tensor.op.name not in self._foreign
                if from_here and foreign:
                    place = self.place(operation)
                    if not place:
                        self.kept.append(tensor)
                    elif tensor.op.name not in self._sizes:
                        self.leaving[place][tensor.name] = tensor
                elif not from_here and not foreign:
                    self.arriving[tensor.name] = tensor
                    if operation.name not in self._sizes:
                        used.add(tensor.name)
        self.not_sent = {*self.arriving} - used

    def _find_tokens(self) -> set[str]:
        """Returns what stands for whole tables, and has no rows in it."""
        variables = tensorflow_captures.variables(self.graph)
        return {
            name
            for name, tensor in self.arriving.items()
            for source in tensor.op.inputs
            if isinstance(variables.get(id(source)), TapeAnchor)
        }

    def definition(self) -> tf.compat.v1.GraphDef:
        """Returns the worker's operations, and placeholders named by `fed`."""
        definition = self.graph.as_graph_def()
        local = tf.compat.v1.GraphDef()
        local.versions.CopyFrom(definition.versions)
        local.library.CopyFrom(definition.library)
        placeholders = {**self.arriving}
        for name in self.feeds:
            placeholders[name] = self.graph.get_tensor_by_name(name)
        for name, tensor in placeholders.items():
            node = local.node.add()
            node.name, node.op = fed(name), "Placeholder"
            node.attr["dtype"].type = tensor.dtype.as_datatype_enum
            shape = tf.TensorShape([None] * (tensor.shape.rank or 0))
            if name not in self.tokens:
                shape = tensor.shape
            node.attr["shape"].shape.CopyFrom(shape.as_proto())
        for node in definition.node:
            if node.name in self._foreign or node.op == "Placeholder":
                continue
            inputs = []
            for each in node.input:
                if each.startswith("^"):
                    source = each[1:]
                    if not self._is_here(source):
                        continue
                    inputs.append(each)
                    continue
                full = each if ":" in each else f"{each}:0"
                inputs.append(fed(full) if full in placeholders else each)
            mine = local.node.add()
            mine.CopyFrom(node)
            mine.device = ""
            del mine.input[:]
            mine.input.extend(inputs)
            mine.attr.pop("_class", None)
        return local

    def _is_here(self, name: str) -> bool:
        operation = self.graph.get_operation_by_name(name)
        return name not in self._foreign and operation.type != "Placeholder"

    def origin(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """Returns what a worker sends that decides the size of an answer."""
        if tensor.shape.rank is None:
            return None
        seen, queue = set(), collections.deque([tensor.op])
        found: list[tf.Tensor] = []
        while queue:
            operation = queue.popleft()
            if operation.name in seen:
                continue
            seen.add(operation.name)
            for each in operation.inputs:
                if each.dtype == tf.resource:
                    continue
                if each.op.name in self._foreign:
                    queue.append(each.op)
                elif each.shape.rank and not each.shape.is_fully_defined():
                    found.append(each)
        return found[0] if found else None

    def needs(self, tensor: tf.Tensor) -> set[str]:
        """Returns the names of everything arriving that a tensor needs."""
        needed, seen, queue = set(), set(), [tensor]
        while queue:
            each = queue.pop()
            if each.name in seen:
                continue
            seen.add(each.name)
            if each.name in self.arriving or each.name in self.feeds:
                needed.add(each.name)
                continue
            queue += [t for t in each.op.inputs if t.dtype != tf.resource]
        return needed


def _refuse(operation: tf.Operation) -> None:
    """Refuses what hides the row numbers of lookups, or asks in a loop."""
    if operation.type.startswith(_WORDS):
        raise errors.PlanError(
            "Rows of a step are known only where its row numbers are computed "
            "from the batch, and a table of words is not. Expected numbers as "
            "input of the model. Received: "
            f"{operation.name} ({operation.type}). Look words up in the input "
            "pipeline."
        )
    if any(
        places.job(device) == PARAMETER_SERVER
        for inner in tensorflow_graphs.functions_of(operation).values()
        for device in tensorflow_graphs.devices_within(inner)
    ):
        raise errors.PlanError(
            "Parameter servers are asked within a loop, a branch or a "
            "function of the step, so it cannot be cut. Received: "
            f"{operation.name} ({operation.type})"
        )


def _is_foreign(operation: tf.Operation) -> bool:
    """Returns whether the worker does not run it without a cluster."""
    if places.place(operation.device):
        return True
    tensors = (*operation.inputs, *operation.outputs)
    return any(t.dtype == tf.resource for t in tensors) or (
        operation.type == "Placeholder"
    )


def _batch_feeds(step: Any, batch: Any) -> dict[str, np.ndarray]:
    """Returns the values of the arguments of a step, by their names."""
    captured = tensorflow_captures.values_by_argument(step.graph)
    feeds = {}
    parts = iter(tf.nest.flatten(batch, expand_composites=True))
    for tensor in step.graph.inputs:
        if tensor.dtype in (tf.resource, tf.variant):
            continue
        if id(tensor) not in captured:
            # Keras casts what it reads in this way, too.
            feeds[tensor.name] = np.asarray(next(parts)).astype(
                tensor.dtype.as_numpy_dtype
            )
        elif captured[id(tensor)] is not None:
            feeds[tensor.name] = captured[id(tensor)].numpy()
    return feeds


def fed(name: str) -> str:
    """Returns the name of the placeholder of a tensor.

    Args:
        name: Name of the tensor in the step.
    """
    return "fed_" + "".join(c if c.isalnum() else "_" for c in name)
