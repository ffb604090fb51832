"""States that workers cannot put together in a synchronous step.

Workers that make a step together put together what each of them would assign.
The mean over examples suits what describes a batch, such as the average that
`keras.layers.BatchNormalization` keeps. It does not suit what belongs to the
examples of one worker, such as the state that a recurrent layer carries from
batch to batch, nor a ratio of two states. Those are the states that need steps
in order in asynchronous training (`ps_rules`).
"""

from collections.abc import Collection
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin.variables.states import ps_rules
from tfps_plugin.variables.states.flow import Flow


class Change(NamedTuple):
    """A mean that a step assigns to a state, unless that is refused.

    Attributes:
        variable: The state, whole or sharded.
        value: The value to assign, on the worker.
        others: The tensors besides the state itself that the value is computed
            from, if that is done element by element; None: it is not.
    """

    variable: Any
    value: tf.Tensor
    others: Sequence[tf.Tensor] | None


def of_one_step(
    flow: Flow,
    changes: Sequence[Change],
    states: Collection[Any],
    results: Sequence[tf.Tensor],
) -> list[Change]:
    """Returns the changes of states that are no mean over all workers.

    Args:
        flow: The data flow of the step, which assigns nothing itself.
        changes: The means, which depend on the batch.
        states: All states that the step assigns.
        results: The results of the step: what it returns, assigns, and applies.

    Returns:
        Some of `changes`, in their order.
    """
    return [
        change
        for change in changes
        if _is_no_mean(flow, change, states, results)
    ]


def _is_no_mean(
    flow: Flow,
    change: Change,
    states: Collection[Any],
    results: Sequence[tf.Tensor],
) -> bool:
    variable = change.variable
    own = _reads(flow, variable)
    given = [change.value] if change.others is None else change.others
    mask = _mask(flow, given)
    if mask & own:
        return True
    # States of one layer, such as a count and a mean.
    if any(
        mask & _reads(flow, other)
        for other in states
        if other is not variable
        and ps_rules.owner(other) == ps_rules.owner(variable)
    ):
        return True
    # It describes the last batch, and the step uses it.
    return change.others is None and bool(_mask(flow, results) & own)


def _reads(flow: Flow, variable: Any) -> int:
    """Returns the bits of all reads of a variable, or of its shards."""
    bits = 0
    for part in getattr(variable, "variables", None) or [variable]:
        bits |= flow.reads(part)
    return bits


def _mask(flow: Flow, tensors: Sequence[tf.Tensor]) -> int:
    """Returns the reads that flow into tensors of the function itself."""
    bits = 0
    for tensor in tensors:
        bits |= flow.root.mask(tensor)
    return bits
