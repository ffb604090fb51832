"""Waves: groups tensors of a step that can travel together. Pure.

Every operation of a step has a place: the worker that runs the step, or a
parameter server. Its wave is the number of transfers, one after the other, that
it depends on; transfers in loops and branches count. A tensor may leave as late
as its first reader's wave allows. All tensors that can leave one place for
another in the same wave travel as one message. No TensorFlow is needed.

There are no deadlocks: a message carries tensors of its own wave or earlier
ones, and is only read in later ones.
"""

import collections
import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple


class Output(NamedTuple):
    """A tensor: an output of a node.

    Attributes:
        node: Number of the node.
        number: Number of the output.
    """

    node: int
    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """An operation, as far as messages are concerned.

    Attributes:
        place: Its place; None if every place has its own copy, as with a
            constant.
        inputs: The outputs that it reads.
        controls: The nodes that it runs after.
        stays: Inputs and controls that no message carries.
        lasts: Number of transfers while it runs: a loop or a branch may send
            messages to other places itself.
    """

    place: str | None
    inputs: tuple[Output, ...] = ()
    controls: tuple[int, ...] = ()
    stays: frozenset[Output | int] = frozenset()
    lasts: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """Values that travel from one place to another in one wave.

    Attributes:
        source: The place that it leaves.
        destination: The place that it goes to.
        wave: The last wave that anything in it was made in.
        outputs: The tensors, in the order of the nodes that make them.
        controls: Nodes that the readers of the message run after.
    """

    source: str
    destination: str
    wave: int
    outputs: tuple[Output, ...]
    controls: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Waves of nodes, and the messages between them.

    Attributes:
        waves: The wave of each node, in which it begins.
        messages: The messages in the order of their waves.
    """

    waves: tuple[int, ...]
    messages: tuple[Message, ...]

    def in_order(self) -> Iterator[int | Message]:
        """Yields numbers of nodes, and messages, in topological order."""
        by_wave = collections.defaultdict(list)
        for number, wave in enumerate(self.waves):
            by_wave[wave].append(number)
        messages = collections.defaultdict(list)
        for message in self.messages:
            messages[message.wave].append(message)
        for wave in sorted({*by_wave, *messages}):
            yield from by_wave[wave]
            yield from messages[wave]


def plan(nodes: Sequence[Node]) -> Plan:
    """Finds waves, and the fewest messages that they allow.

    Args:
        nodes: Nodes in topological order.

    Returns:
        The plan. No message carries a tensor for a reader that has it among
        its `stays`.
    """
    waves = _waves(nodes)
    crossings = _crossings(nodes, waves)
    messages = []
    for (source, destination), departures in crossings.items():
        for wave, taken in _fewest(departures):
            messages.append(
                Message(
                    source,
                    destination,
                    wave,
                    tuple(sorted(x for x in taken if isinstance(x, Output))),
                    tuple(sorted(x for x in taken if isinstance(x, int))),
                )
            )
    return Plan(tuple(waves), tuple(sorted(messages, key=_order)))


def num_crossings(nodes: Sequence[Node]) -> int:
    """Returns the number of messages if each value travels by itself.

    Args:
        nodes: As for `plan`.
    """
    tensors = {
        (output, node.place)
        for node in nodes
        for output in node.inputs
        if _is_apart(nodes[output.node], node)
    }
    controls = {
        (earlier, node.place)
        for node in nodes
        for earlier in node.controls
        if _is_apart(nodes[earlier], node)
    }
    return len(tensors) + len(controls)


class _Stay(NamedTuple):
    """The waves in which a value may leave: from `first` to `last`."""

    first: int
    last: int


_Departures = dict[Output | int, _Stay]


def _is_apart(earlier: Node, later: Node) -> bool:
    places = (earlier.place, later.place)
    return None not in places and earlier.place != later.place


def _end(nodes: Sequence[Node], waves: Sequence[int], number: int) -> int:
    """Returns the wave in which a node has ended."""
    return waves[number] + nodes[number].lasts


def _waves(nodes: Sequence[Node]) -> list[int]:
    waves: list[int] = []
    for node in nodes:
        before = {output.node for output in node.inputs}
        before.update(node.controls)
        waves.append(
            max(
                (
                    _end(nodes, waves, number) + _is_apart(nodes[number], node)
                    for number in before
                ),
                default=0,
            )
        )
    return _without_haste(nodes, waves)


def _without_haste(nodes: Sequence[Node], waves: Sequence[int]) -> list[int]:
    """Delays nodes whose results are needed later, and only at their place.

    Their inputs may then leave later, together with more tensors.
    """
    delayed = list(waves)
    # The first wave in which each node is read.
    needed: list[int | None] = [None] * len(nodes)
    travels = [False] * len(nodes)
    for number in range(len(nodes) - 1, -1, -1):
        node = nodes[number]
        first = needed[number]
        if first is not None and not travels[number]:
            delayed[number] = max(first - node.lasts, delayed[number])
        before = {output.node for output in node.inputs}
        before.update(node.controls)
        for earlier in before:
            if _is_apart(nodes[earlier], node):
                travels[earlier] = True
            known = needed[earlier]
            wave = delayed[number]
            needed[earlier] = wave if known is None else min(known, wave)
    return delayed


def _crossings(
    nodes: Sequence[Node], waves: Sequence[int]
) -> dict[tuple[str, str], _Departures]:
    """Returns the waves in which values may leave, by pairs of places."""
    crossings: dict[tuple[str, str], _Departures] = collections.defaultdict(
        dict
    )

    def add(what: Output | int, earlier: int, reader: int) -> None:
        departures = crossings[
            # Neither is None: copies at each place do not travel.
            str(nodes[earlier].place), str(nodes[reader].place)
        ]
        last = waves[reader] - 1
        known = departures.get(what)
        departures[what] = _Stay(
            _end(nodes, waves, earlier),
            last if known is None else min(last, known.last),
        )

    for number, node in enumerate(nodes):
        for output in node.inputs:
            if output not in node.stays and _is_apart(nodes[output.node], node):
                add(output, output.node, number)
        for earlier in node.controls:
            if earlier not in node.stays and _is_apart(nodes[earlier], node):
                add(earlier, earlier, number)
    return crossings


def _fewest(
    departures: _Departures,
) -> Iterator[tuple[int, Iterable[Output | int]]]:
    """Yields the fewest waves in which everything can leave, with its values.

    This is the greedy algorithm for the fewest points that hit all intervals:
    the interval that ends first is hit at its end, together with all that have
    begun by then.
    """
    waiting = dict(departures)
    while waiting:
        wave = min(stay.last for stay in waiting.values())
        taken = [what for what, stay in waiting.items() if stay.first <= wave]
        yield wave, taken
        for what in taken:
            del waiting[what]


def _order(message: Message) -> tuple[int, str, str]:
    return message.wave, message.source, message.destination
