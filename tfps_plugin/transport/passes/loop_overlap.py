"""Overlap of a loop's iterations. Pure: no TensorFlow.

An iteration of a training loop ends with updates on parameter servers. As
traced, its results wait for them, and so does the next iteration on the worker:
each parameter server has to report that it is done. But on a parameter server,
the next iteration's operations come after those of this one anyway, because
iterations of a loop do not overlap on one task. So the worker may go on. It
sees the same values, and waits for the updates when the whole function ends.
"""

import dataclasses
from collections.abc import Collection
from collections.abc import Sequence

from tfps_plugin.transport.waves import Node


def without_answers(
    nodes: Sequence[Node],
    controls: Sequence[int],
    effects: Collection[int],
    *,
    here: str,
) -> tuple[list[Node], frozenset[int]]:
    """Removes waits for remote operations from nodes that only pass values.

    Args:
        nodes: Nodes of the body of a loop whose iterations do not overlap on
            one task, in topological order.
        controls: The nodes that have run when an iteration has ended.
        effects: The nodes that have side effects.
        here: The place of the worker that runs the loop.

    Returns:
        The nodes; and those of `controls` that the end of an iteration does
        not wait for. Effects on the worker keep their order.
    """
    # Whether a node, or one that waits for it in this iteration, has an effect
    # or runs elsewhere.
    matters = [
        number in effects or node.place not in (None, here)
        for number, node in enumerate(nodes)
    ]
    for number in range(len(nodes) - 1, -1, -1):
        if matters[number]:
            node = nodes[number]
            for output in node.inputs:
                matters[output.node] = True
            for earlier in node.controls:
                matters[earlier] = True
    changed = [
        node
        if matters[number] or node.place != here
        else dataclasses.replace(
            node,
            controls=tuple(
                earlier
                for earlier in node.controls
                if nodes[earlier].place in (None, here)
            ),
        )
        for number, node in enumerate(nodes)
    ]
    unasked = frozenset(
        number
        for number in controls
        if number in effects and nodes[number].place not in (None, here)
    )
    return changed, unasked
