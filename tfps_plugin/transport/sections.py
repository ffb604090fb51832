"""Critical sections: operations that run under a lock. Pure: no TensorFlow.

An optimizer's update of a variable holds a lock of its parameter server (see
`variables.update_lock`). Nothing waits for a message under a lock: the inputs
of a section arrive before its lock is taken. Otherwise two workers could
deadlock, each with a lock that the other's message depends on.
"""

import dataclasses
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from tfps_plugin.transport.waves import Node
from tfps_plugin.transport.waves import Output

# Types of operations.
TAKES_LOCK = "MutexLock"
GIVES_BACK_LOCK = "ConsumeMutexLock"


def before_locks(
    nodes: Sequence[Node], locks: Mapping[int, Collection[int]]
) -> list[Node]:
    """Makes locks wait for what their sections receive from other places.

    Args:
        nodes: Nodes in topological order.
        locks: The nodes that acquire a lock, each with those that release it.

    Returns:
        The nodes. Those that acquire a lock wait for all inputs of their
        section that were made before it. Tensors between operations of one
        section stay out of messages. The release of a lock does not wait for
        other locks, although TensorFlow orders such operations.
    """
    takers = list(locks)
    bits = {taker: 1 << place for place, taker in enumerate(takers)}
    nodes = _given_back_at_once(nodes, locks, bits)
    after = _after(nodes, bits)
    inside = [
        mine & theirs
        for mine, theirs in zip(after, _before(nodes, locks, bits), strict=True)
    ]
    arrivals: dict[int, dict[Output, None]] = {taker: {} for taker in takers}
    made: dict[int, dict[int, None]] = {taker: {} for taker in takers}
    stays: dict[int, set[Output | int]] = {}

    def is_before(earlier: int, taker: int, node: Node) -> bool:
        return (
            not after[earlier] & bits[taker]
            and earlier < taker
            and nodes[taker].place == node.place
        )

    for number, node in enumerate(nodes):
        holds = [t for t in takers if inside[number] & bits[t] and t != number]
        for taker in holds:
            for output in node.inputs:
                place = nodes[output.node].place
                if place is None:
                    continue
                if place == node.place:
                    if is_before(output.node, taker, node):
                        made[taker][output.node] = None
                elif is_before(output.node, taker, node):
                    arrivals[taker][output] = None
                else:
                    stays.setdefault(number, set()).add(output)
            if number in locks[taker]:
                # It waits only for its own section.
                continue
            for earlier in node.controls:
                place = nodes[earlier].place
                if place is None:
                    continue
                if is_before(earlier, taker, node):
                    # A node at this place may wait for a lock itself.
                    made[taker][earlier] = None
                elif place != node.place:
                    stays.setdefault(number, set()).add(earlier)
    changed = list(nodes)
    for taker, outputs in arrivals.items():
        node = changed[taker]
        changed[taker] = dataclasses.replace(
            node,
            inputs=tuple(dict.fromkeys((*node.inputs, *outputs))),
            controls=tuple(dict.fromkeys((*node.controls, *made[taker]))),
        )
    for number, staying in stays.items():
        changed[number] = dataclasses.replace(
            changed[number], stays=frozenset(staying)
        )
    return changed


def _given_back_at_once(
    nodes: Sequence[Node],
    locks: Mapping[int, Collection[int]],
    bits: Mapping[int, int],
) -> list[Node]:
    """Makes nodes that release a lock wait only for its own section."""
    after = _after(nodes, bits)
    changed = list(nodes)
    for taker, givers in locks.items():
        for giver in givers:
            controls = nodes[giver].controls
            changed[giver] = dataclasses.replace(
                nodes[giver],
                controls=tuple(c for c in controls if after[c] & bits[taker]),
            )
    return changed


def _after(nodes: Sequence[Node], bits: Mapping[int, int]) -> list[int]:
    """Returns the locks acquired before each node runs, as bits."""
    after: list[int] = []
    for number, node in enumerate(nodes):
        taken = bits.get(number, 0)
        for output in node.inputs:
            taken |= after[output.node]
        for earlier in node.controls:
            taken |= after[earlier]
        after.append(taken)
    return after


def _before(
    nodes: Sequence[Node],
    locks: Mapping[int, Collection[int]],
    bits: Mapping[int, int],
) -> list[int]:
    """Returns the locks released after each node has run, as bits."""
    before = [0] * len(nodes)
    for taker, givers in locks.items():
        for giver in givers:
            before[giver] |= bits[taker]
    for number in range(len(nodes) - 1, -1, -1):
        node = nodes[number]
        for output in node.inputs:
            before[output.node] |= before[number]
        for earlier in node.controls:
            before[earlier] |= before[number]
    return before
