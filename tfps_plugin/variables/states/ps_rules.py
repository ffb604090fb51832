"""States on parameter servers that concurrent workers would corrupt.

A layer's state is one variable for all workers. Additions to it are atomic, and
its parameter server computes new values from the state itself, under a lock
(`self_assignment`). Any other assignment is only correct if no other step comes
in between: such steps have to run one after another.
"""

from collections.abc import Collection
from typing import Any

from tfps_plugin.variables.kinds.sharded_variable import whole_of
from tfps_plugin.variables.states import flow as flows
from tfps_plugin.variables.states.flow import Flow
from tfps_plugin.variables.states.flow import Write

_ADDITIONS = frozenset(
    {
        "AssignAddVariableOp",
        "AssignSubVariableOp",
        "ResourceScatterAdd",
        "ResourceScatterSub",
        "ResourceScatterNdAdd",
        "ResourceScatterNdSub",
    }
)


def of_one_step(
    flow: Flow, states: Collection[Any], optimized: Collection[Any]
) -> list[Any]:
    """Returns the variables that are only correct if steps run in order.

    Args:
        flow: The data flow of a traced step.
        states: The variables on parameter servers to consider.
        optimized: The ids of variables that only an optimizer uses.

    Returns:
        Variables, in the order of `flow.variables`.
    """
    assigned = [
        one for one in states if flow.writes_of(one) and not _has_directory(one)
    ]
    shared = [
        one
        for one in assigned
        if not one.trainable and id(one) not in optimized
    ]
    return [
        one
        for one in assigned
        if any(
            _spoils_weight(flow, write)
            if one.trainable or id(one) in optimized
            else _spoils_state(flow, write, shared)
            for write in flow.writes_of(one)
        )
    ]


def _has_directory(variable: Any) -> bool:
    """Returns whether it is, or is a slot of, a table with a directory."""
    whole = whole_of(variable)
    while (first := getattr(whole, "beside", lambda: None)()) is not None:
        whole = whole_of(first)
    return bool(getattr(whole, "has_directory", False))


def _spoils_weight(flow: Flow, write: Write) -> bool:
    """Returns whether an assignment undoes concurrent changes of a weight.

    Gradients may depend on an old value of the weight, and so may a decision to
    skip a step. An update under the lock computes the weight from its current
    value, or from its slots.
    """
    if write.operation.type in _ADDITIONS:
        return False
    own = flow.reads(write.variable)
    return bool(write.data & own) and not (
        write.data & flow.all_reads_under(write.lock)
    )


def _spoils_state(flow: Flow, write: Write, shared: list[Any]) -> bool:
    """Returns whether a concurrent assignment would corrupt a state."""
    variable = write.variable
    own = flow.reads(variable)
    fresh = flow.reads_under(variable, write.lock)
    if write.mask & own & ~fresh:
        return True
    # States of one layer, such as a count and a mean, or a codebook's sums.
    for other in shared:
        if (
            other is not variable
            and owner(other) == owner(variable)
            and write.mask & flow.reads(other)
        ):
            return True
    if write.operation.type in _ADDITIONS or write.mask & fresh:
        return False
    # The state describes the last batch. That is only a problem if the step
    # uses it. Copies of weights do not depend on the batch.
    return bool(write.mask & flows.DATA) and _is_used(flow, variable)


def _is_used(flow: Flow, variable: Any) -> bool:
    """Returns whether results or writes of the step depend on a variable."""
    reads = flow.reads(variable)
    return bool(flow.outputs & reads) or any(
        write.mask & reads for write in flow.writes
    )


def owner(variable: Any) -> str:
    """Returns the layer or metric of a variable, according to its path.

    Args:
        variable: A variable on parameter servers, whole or sharded, or a shard.
    """
    container = getattr(variable, "_distributed_container", None)
    whole = variable if container is None else container()
    head, _, _ = whole.path.rpartition("/")
    return str(head)
