"""States of which every lane has a copy, and their rules."""

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_captures
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.per_worker.worker_seeds import WorkerLocalSeed
from tfps_plugin.variables.states import local_rules
from tfps_plugin.variables.states.flow import Flow


def of(flow: Flow) -> list[WorkerLocalVariable]:
    """Returns the metric states that a traced function uses."""
    return [
        one
        for one in flow.variables
        if isinstance(one, WorkerLocalVariable)
        and not isinstance(one, WorkerLocalSeed)
    ]


def settle(flow: Flow) -> list[WorkerLocalVariable]:
    """Sets the rules of states, as a function's operations require.

    Args:
        flow: The data flow of the traced function.

    Returns:
        The states whose copies cannot be merged. One reason may be that
        another function requires another rule.
    """
    states = of(flow)
    rules = local_rules.find(flow, states) if states else {}
    homeless = []
    for state in states:
        if state.rule_is_given or id(state) not in rules:
            continue
        rule = rules[id(state)]
        if rule is None or (state.is_settled and rule is not state.rule):
            homeless.append(state)
        else:
            state.settle(rule)
    return homeless


def settle_or_refuse(graph: tf.Graph) -> None:
    """Sets the rules of a function's states, if the function is final.

    Args:
        graph: Graph of the traced function, which nobody can change.

    Raises:
        UnsupportedError: If copies of a state cannot be merged.
    """
    variables = tensorflow_captures.variables(graph).values()
    if not any(isinstance(one, WorkerLocalVariable) for one in variables):
        return
    homeless = settle(Flow(graph))
    if homeless:
        raise without_rule(homeless[0])


def without_rule(state: WorkerLocalVariable) -> errors.UnsupportedError:
    """Returns the error for a state whose copies cannot be merged."""
    return errors.UnsupportedError(
        f"Every worker has a copy of the metric state {state.path!r}, and "
        "nothing says how the copies are put together. Expected a state that "
        "a step adds to, raises (maximum) or lowers (minimum), by something "
        "that depends on no other metric state; or an aggregation. Received: "
        f"state={state.path!r}, assigned in another way. What to do: make it "
        "with add_variable(..., aggregation='mean') or "
        "aggregation='only_first_replica', or as a variable of a layer. See "
        "docs/state.md."
    )
