"""Rules to put together what the parts of a step assign to a variable.

The parts are those of workers that make a step together, or of the replicas of
one worker. Each has examples of its own.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import Literal

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_graphs
from tfps_plugin.variables.states import sync_rules
from tfps_plugin.variables.states.flow import Flow
from tfps_plugin.variables.states.sync_rules import Change

Combination = Literal["mean", "sum", "first"]

_SHOWN = 5

# Operations of these names give what only this part of a step has.
_INPUT = (
    "Iterator",
    "MultiDeviceIterator",
    "Optional",
    "PyFunc",
    "EagerPyFunc",
)

_BY_AGGREGATION: dict[tf.VariableAggregation, Combination] = {
    tf.VariableAggregation.MEAN: "mean",
    tf.VariableAggregation.SUM: "sum",
    tf.VariableAggregation.ONLY_FIRST_REPLICA: "first",
}


def how_to_combine(variable: Any, method: str, value: tf.Tensor) -> Combination:
    """Returns how to put the values of all that make a step together.

    The variable's `aggregation` decides, as in TensorFlow. Without one, a value
    that does not depend on the batch is the same for all; and what a
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
    # The sum of what each would make of the variable has no meaning.
    is_whole_sum = given == "sum" and method == "assign"
    if is_whole_sum:
        given = None
    is_float = variable.dtype.is_floating
    if given == "mean" and not is_float:
        given = None
    if given is not None:
        return given
    if not depends_on_data(value):
        return "first"
    if (
        is_float
        and not is_whole_sum
        and (method == "assign" or variable.trainable)
    ):
        return "mean"
    raise errors.UnsupportedError(
        f"A step of several workers or replicas changes {variable.name!r} by "
        f"{method}, and does not say what their values become. Expected a "
        'variable with an aggregation: "sum" (of what steps add), "mean" (of '
        'floats) or "only_first_replica". Received: '
        f"aggregation={variable.aggregation.name.lower()!r}. Pass one to "
        "add_weight() or tf.Variable()."
    )


def says_how(variable: Any) -> bool:
    """Returns whether a variable says how its values are put together.

    The mean of what is assigned to a weight is what an optimizer makes of
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
    states: Sequence[Any],
    results: Any,
    *,
    who: str,
    advice: str,
) -> None:
    """Refuses states that are no mean over the examples of the whole step.

    Args:
        changes: What the step assigns to variables that do not say how its
            values are put together.
        states: All variables that the step assigns.
        results: What the step returns, assigns, and applies.
        who: Who makes the step, for the message.
        advice: What to do, likewise.

    Raises:
        UnsupportedError: If one of `changes` is to such a state.
    """
    if not changes:
        return
    tensors = tf.nest.flatten(results, expand_composites=True)
    refused = sync_rules.of_one_step(
        Flow(tf.compat.v1.get_default_graph()),
        changes,
        [each for each in states if not each.trainable],
        [each for each in tensors if isinstance(each, tf.Tensor)],
    )
    if refused:
        shown = dict.fromkeys(
            f"{each.variable.path!r}, computed by {each.value.op.name!r}"
            for each in refused
        )
        raise errors.UnsupportedError(
            f"A step cannot put together what {who} assign to a state that "
            "passes from one batch to the next, or that is computed from "
            "another state of its layer: the mean, of parts that have examples "
            "of their own, is the state of none of them. Expected only one, "
            "or states that a step computes from the batch and, element by "
            "element, from themselves. Received: "
            f"{'; '.join([*shown][:_SHOWN])}; with {who}. {advice}; or change "
            "the layer: stateful=False; or, if the mean is right, because the "
            "state describes the whole batch, make it with "
            "add_weight(..., aggregation='mean'). See docs/state.md."
        )


def depends_on_data(value: tf.Tensor) -> bool:
    """Returns whether a value may differ within a step.

    It may, if it is computed from an argument of the step, such as the batch,
    from what the step reads, or at random.

    Args:
        value: A tensor of the step.
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
