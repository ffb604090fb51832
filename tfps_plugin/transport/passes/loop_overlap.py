"""What a loop's next round need not wait for. Pure: no TensorFlow.

A round of a training loop ends with updates on parameter servers. As traced,
what it returns waits for them, and so does the next round, on the worker: each
parameter server has to say that it is done. But the next round's operations on
a parameter server wait for those of this round there by themselves, where
rounds of a loop do not overlap. So the worker may go on: it sees the same
values, and hears of the updates when the whole function has ended.
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
    """Has nothing wait for operations elsewhere that only hands on values.

    Args:
        nodes: Of the body of a loop whose rounds will not overlap, each after
            those that it reads and runs after.
        controls: The nodes that have run when a round has ended.
        effects: The nodes that do more than to compute what they return.
        here: The place of the worker that runs the loop.

    Returns:
        The nodes; and those of `controls` that the end of a round does not
        wait for. An effect on the worker happens after whatever it happened
        after before.
    """
    # Whether a node, or one that waits for it in this round, has an effect or
    # is elsewhere.
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
