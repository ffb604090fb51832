"""States on parameter servers that several workers at once would spoil.

A layer's state is one variable for all workers. Additions to it are atomic,
and what is computed from the state itself is computed on its parameter server,
under a lock (`self_assignment`). Whatever else a step assigns to it holds only
if no other step comes in between: such steps have to follow one another.
"""

from collections.abc import Collection
from typing import Any

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
    """The variables that only steps in order, one after another, get right.

    Args:
        flow: Of a step that was traced.
        states: Those on parameter servers that it is about; no other counts.
        optimized: The ids of those that an optimizer has for itself.

    Returns:
        In the order of `flow.variables`.
    """
    assigned = [one for one in states if flow.writes_of(one)]
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


def _spoils_weight(flow: Flow, write: Write) -> bool:
    """Whether an assignment undoes what others did to a weight meanwhile.

    What depends on the weight in a gradient may be as old as gradients are; so
    may a decision to leave out a step. An update under the lock computes the
    weight from itself or from its slots, as they are then.
    """
    if write.operation.type in _ADDITIONS:
        return False
    own = flow.reads(write.variable)
    return bool(write.data & own) and not (
        write.data & flow.all_reads_under(write.lock)
    )


def _spoils_state(flow: Flow, write: Write, shared: list[Any]) -> bool:
    """Whether an assignment of a state needs that no other comes between."""
    variable = write.variable
    own = flow.reads(variable)
    fresh = flow.reads_under(variable, write.lock)
    if write.mask & own & ~fresh:
        return True
    # Of one layer: a count and a mean, the sums behind a codebook.
    for other in shared:
        if (
            other is not variable
            and _owner(other) == _owner(variable)
            and write.mask & flow.reads(other)
        ):
            return True
    if write.operation.type in _ADDITIONS or write.mask & fresh:
        return False
    # Of the last batch: nobody may ask for an earlier one's, but weights have
    # copies.
    return bool(write.mask & flows.DATA) and _is_used(flow, variable)


def _is_used(flow: Flow, variable: Any) -> bool:
    """Whether anything that the step does depends on a variable."""
    reads = flow.reads(variable)
    return bool(flow.outputs & reads) or any(
        write.mask & reads for write in flow.writes
    )


def _owner(variable: Any) -> str:
    """The layer or metric of a variable, as its path says."""
    container = getattr(variable, "_distributed_container", None)
    whole = variable if container is None else container()
    head, _, _ = whole.path.rpartition("/")
    return str(head)
