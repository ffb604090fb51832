"""Values that a synchronous step assigns: how those of workers are combined."""

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_graphs
from tfps_plugin.training.synchronous.parcels import Applied
from tfps_plugin.training.synchronous.parcels import Assigned
from tfps_plugin.training.synchronous.parcels import How
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.methods import self_assignment
from tfps_plugin.variables.states import sync_rules
from tfps_plugin.variables.states.flow import Flow
from tfps_plugin.variables.states.sync_rules import Change

_SHOWN = 5

# Operations of these names give what only this worker has.
_INPUT = (
    "Iterator",
    "MultiDeviceIterator",
    "Optional",
    "PyFunc",
    "EagerPyFunc",
)

_BY_AGGREGATION: dict[tf.VariableAggregation, How] = {
    tf.VariableAggregation.MEAN: "mean",
    tf.VariableAggregation.SUM: "sum",
    tf.VariableAggregation.ONLY_FIRST_REPLICA: "first",
}


def how_to_combine(variable: Any, method: str, value: tf.Tensor) -> How:
    """Returns how to put the values of several workers together.

    The variable's `aggregation` decides, as in TensorFlow. Without one, a value
    that does not depend on the batch is the same on all workers; and what a
    float becomes, such as the mean of BatchNormalization, is the mean over
    examples.

    Args:
        variable: A variable on parameter servers.
        method: `"assign"`, `"assign_add"` or `"assign_sub"`.
        value: The value, a tensor of the step.

    Raises:
        UnsupportedError: If it may be a sum or a mean.
    """
    given = _BY_AGGREGATION.get(variable.aggregation)
    # The sum of what each worker would make of the variable has no meaning.
    is_whole_sum = given == "sum" and method == "assign"
    if is_whole_sum:
        given = None
    is_float = variable.dtype.is_floating
    if given == "mean" and not is_float:
        given = None
    if given is not None:
        return given
    if not _depends_on_data(value):
        return "first"
    if (
        is_float
        and not is_whole_sum
        and (method == "assign" or variable.trainable)
    ):
        return "mean"
    raise errors.UnsupportedError(
        f"A synchronous step changes {variable.name!r} by {method}, and does "
        "not say what the values of several workers become. Expected a "
        'variable with an aggregation: "sum" (of what steps add), "mean" (of '
        'floats) or "only_first_replica". Received: '
        f"aggregation={variable.aggregation.name.lower()!r}. Pass one to "
        "add_weight() or tf.Variable()."
    )


def says_how(variable: Any) -> bool:
    """Returns whether a variable says how its values are put together.

    The mean of what workers assign to a weight is what an optimizer makes of
    the mean of their gradients, so a weight need not say it.

    Args:
        variable: A variable on parameter servers.
    """
    return bool(
        variable.trainable
        or variable.aggregation != tf.VariableAggregation.NONE
    )


def require_means(
    changes: Sequence[Change],
    assigned: Sequence[Assigned],
    applied: Sequence[Applied],
    outputs: Any,
    num_workers: int,
) -> None:
    """Refuses states that are no mean over the examples of all workers.

    Args:
        changes: What the step assigns to variables that do not say how its
            values are put together.
        assigned: All that the step assigns.
        applied: The gradients of the step.
        outputs: What the step returns.
        num_workers: Number of workers; one puts nothing together.

    Raises:
        UnsupportedError: If one of `changes` is to such a state.
    """
    if not changes or num_workers == 1:
        return
    results = tf.nest.flatten(
        [
            outputs,
            [each.value for each in assigned],
            [each.gradients for each in applied],
        ],
        expand_composites=True,
    )
    refused = sync_rules.of_one_step(
        Flow(tf.compat.v1.get_default_graph()),
        changes,
        [each.variable for each in assigned if not each.variable.trainable],
        [each for each in results if isinstance(each, tf.Tensor)],
    )
    if refused:
        shown = dict.fromkeys(
            f"{each.variable.path!r}, computed by {each.value.op.name!r}"
            for each in refused
        )
        raise errors.UnsupportedError(
            "A synchronous step cannot put together what several workers "
            "assign to a state that passes from one batch to the next, or that "
            "is computed from another state of its layer: the mean over "
            "workers, each with examples of its own, is the state of none of "
            "them. Expected one worker, or states that a step computes from "
            "the batch and, element by element, from themselves. Received: "
            f"{'; '.join([*shown][:_SHOWN])}; with consistency=tfps.Sync() and "
            f"{num_workers} workers. Train by fit() with tfps.Async(), where "
            "such steps follow one another; or change the layer: "
            "stateful=False; or, if the mean over workers is right, because "
            "the state describes the whole batch, make it with "
            "add_weight(..., aggregation='mean'). See docs/state.md."
        )


def handles_of(variable: Any) -> list[tf.Tensor]:
    """Returns the handles of a variable, or its shards, in the present step.

    Args:
        variable: A variable on parameter servers.
    """
    shards = getattr(variable, "variables", None)
    return [each.handle for each in (shards or [variable])]


def as_addition(variable: Any, value: tf.Tensor) -> tf.Tensor | None:
    """Returns the addend if a value is the variable itself plus an addend.

    Args:
        variable: A variable on parameter servers.
        value: The value to assign, a tensor of the step.
    """
    if isinstance(variable, ShardedVariable):
        return None
    return self_assignment.as_addition(variable, value)


def _depends_on_data(value: tf.Tensor) -> bool:
    """Returns whether a value may differ between workers.

    It may, if it is computed from an argument of the step, such as the batch,
    from what the step reads, or at random.
    """
    return any(
        (operation.type == "Placeholder" and not _is_resource(operation))
        or operation.type.startswith(_INPUT)
        or tensorflow_graphs.draws_from_a_seed(operation)
        or "Random" in operation.type
        for operation in _ancestors(value.op)
    )


def _is_resource(operation: tf.Operation) -> bool:
    return operation.outputs[0].dtype in (tf.resource, tf.variant)


def _ancestors(operation: tf.Operation) -> Iterator[tf.Operation]:
    """Yields an operation and all that it is computed from."""
    seen = {operation}
    waiting = [operation]
    while waiting:
        one = waiting.pop()
        yield one
        for tensor in one.inputs:
            if tensor.op not in seen:
                seen.add(tensor.op)
                waiting.append(tensor.op)
