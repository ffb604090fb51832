"""Reads and updates that a round of local steps makes once."""

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras_optimizers
from tfps_plugin._compat.graph import tensorflow_captures
from tfps_plugin.variables.kinds.mirrored_scalar import MirroredScalar
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.step_trace import Update

_READ = "ReadVariableOp"


class PlannedUpdate(NamedTuple):
    """One `optimizer.apply` of each step, made once for a round.

    Attributes:
        optimizer: The Keras optimizer.
        variables: The `keras.Variable` of each gradient.
        id_dtypes: For each of them the dtype of its gradient's ids; None for a
            dense gradient.
        are_held: For each of them whether its rows may go to other ids before
            the update.
    """

    optimizer: Any
    variables: list[Any]
    id_dtypes: list[tf.DType | None]
    are_held: list[bool]

    def is_of(self, optimizer: Any, variables: Sequence[Any]) -> bool:
        """Returns whether it updates these variables by this optimizer."""
        return optimizer is self.optimizer and [
            id(variable) for variable in variables
        ] == [id(variable) for variable in self.variables]


class Plan(NamedTuple):
    """Reads and updates that a round of local steps makes once.

    Attributes:
        updates: Updates of a step, in their order.
        weights: Variables that a round reads at its start, as a whole: those
            with dense gradients, and others that steps read and never change.
            Everything else, rows among them, each step asks for.
    """

    updates: list[PlannedUpdate]
    weights: list[RemoteVariable | ShardedVariable]


def of_step(graph: tf.Graph, variables: Iterable[Any]) -> Plan:
    """Returns the plan for rounds of a step.

    Args:
        graph: The traced function of one step that applies its gradients.
        variables: TensorFlow's variables of the model.

    Raises:
        UnsupportedError: If the step cannot be made in rounds.
    """
    found = StepTrace.of_graph(graph).updates or []
    if not found:
        raise errors.UnsupportedError(
            "Local steps have to apply gradients, and this step does not. "
            "Expected a call of optimizer.apply() in train_step(). Received: "
            "none. Call it, or train with tfps.Async()."
        )
    updates = [_planned(update, graph) for update in found]
    return Plan(updates, [*_trained(updates), *_unchanged(graph, variables)])


def require_local_reads(plan: Plan, graph: tf.Graph) -> None:
    """Refuses a local step that uses weights of parameter servers directly.

    Args:
        plan: The plan of the round.
        graph: The traced function of one local step.

    Raises:
        UnsupportedError: If an operation uses the handle of such a weight.
    """
    owners = {
        id(shard): variable
        for variable in plan.weights
        for shard in variable.shards
    }
    captured = tensorflow_captures.variables(graph)
    # Captures become inputs when the function has been traced.
    for tensor in graph.inputs:
        variable = owners.get(id(captured.get(id(tensor))))
        # Gradient tapes capture handles, but do not use them.
        if variable is None or not tensor.consumers():
            continue
        raise errors.UnsupportedError(
            "Local steps use the weights that their worker has read at the "
            "beginning of the round. Expected layers without a tf.function of "
            "their own, without scatter_add() and its like, and without a "
            "table that a step both looks up and reads as a whole. Received: "
            f"{variable.path!r}, used by the operation "
            f"{tensor.consumers()[0].name!r}. Change the layer, or train with "
            "tfps.Async()."
        )


def _planned(update: Update, graph: tf.Graph) -> PlannedUpdate:
    dtypes, are_held = [], []
    for variable, gradient in zip(
        update.variables, update.gradients, strict=True
    ):
        value = keras_optimizers.value_of(variable)
        if not isinstance(value, ShardedVariable | RemoteVariable):
            raise errors.UnsupportedError(
                "Local steps train variables on parameter servers. Expected a "
                "variable that was created in strategy.scope(). Received: "
                f"variable={keras_optimizers.path_of(variable)!r} on "
                f"{value.device}"
            )
        is_rows = isinstance(gradient, tf.IndexedSlices)
        dtypes.append(gradient.indices.dtype if is_rows else None)
        lookups = value.lookups_of_steps
        are_held.append(
            is_rows and lookups is not None and lookups.sees_all(graph)
        )
    return PlannedUpdate(
        update.optimizer, list(update.variables), dtypes, are_held
    )


def _trained(updates: Sequence[PlannedUpdate]) -> list[Any]:
    """Returns the variables all gradients of which are dense."""
    by_rows: set[int] = set()
    found: dict[int, Any] = {}
    for update in updates:
        for variable, dtype in zip(
            update.variables, update.id_dtypes, strict=True
        ):
            value = keras_optimizers.value_of(variable)
            found[id(value)] = value
            if dtype is not None:
                by_rows.add(id(value))
    return [value for key, value in found.items() if key not in by_rows]


def _unchanged(graph: tf.Graph, variables: Iterable[Any]) -> list[Any]:
    """Returns the variables that a step reads as a whole, and does no more."""
    wholes = {
        id(shard): variable
        for variable in variables
        if isinstance(variable, ShardedVariable | RemoteVariable)
        and not isinstance(variable, MirroredScalar)
        for shard in variable.shards
    }
    uses: dict[int, tuple[Any, set[str]]] = {}
    captured = tensorflow_captures.variables(graph)
    for tensor in graph.inputs:
        whole = wholes.get(id(captured.get(id(tensor))))
        if whole is not None:
            kinds = uses.setdefault(id(whole), (whole, set()))[1]
            kinds.update(operation.type for operation in tensor.consumers())
    return [whole for whole, kinds in uses.values() if kinds == {_READ}]
