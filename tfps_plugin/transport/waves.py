"""Which tensors of a step travel together. Pure: no TensorFlow.

Every operation of a step has a place: the worker that runs the step, or a
parameter server. Its wave is how often values have had to change places, one
after the other, before it can run; those count that change places inside of a
loop or a branch that it waits for. What leaves one place for another may wait
until its first reader's wave: all that can leave in one wave travels as one
message.

Nothing waits for itself: a message carries what was made in its wave or
earlier, and is read in later ones alone.
"""

import collections
import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple


class Output(NamedTuple):
    """A tensor: what a node returns.

    Attributes:
        node: The number of the node.
        number: Which of its outputs.
    """

    node: int
    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """An operation, as far as messages are concerned.

    Attributes:
        place: Where it runs; None: wherever its readers are, as a constant
            does, of which every place has its own.
        inputs: What it reads.
        controls: The nodes that it runs after.
        stays: Inputs, and nodes that it runs after, of which it is told by no
            message.
        lasts: How often values change places while it runs: a loop or a branch
            may ask other places itself.
    """

    place: str | None
    inputs: tuple[Output, ...] = ()
    controls: tuple[int, ...] = ()
    stays: frozenset[Output | int] = frozenset()
    lasts: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """What travels from one place to another in one wave.

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
    """When nodes run, and what travels.

    Attributes:
        waves: The wave of each node, in which it begins.
        messages: In the order of their waves.
    """

    waves: tuple[int, ...]
    messages: tuple[Message, ...]

    def in_order(self) -> Iterator[int | Message]:
        """Numbers of nodes, and messages: each after all that it needs."""
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
        nodes: Each after the nodes whose outputs it reads and that it runs
            after.

    Returns:
        The plan; a tensor that stays somewhere in the way of a reader is in
        no message on that reader's account.
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


def of(nodes: Sequence[Node]) -> tuple[int, ...]:
    """The wave of each node.

    Args:
        nodes: As for `plan`.
    """
    return tuple(_waves(nodes))


def num_crossings(nodes: Sequence[Node]) -> int:
    """How many values travel if each does so by itself.

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
    """When something may leave: in the waves from `first` to `last`."""

    first: int
    last: int


_Departures = dict[Output | int, _Stay]


def _is_apart(earlier: Node, later: Node) -> bool:
    places = (earlier.place, later.place)
    return None not in places and earlier.place != later.place


def _end(nodes: Sequence[Node], waves: Sequence[int], number: int) -> int:
    """The wave that what a node returns is there in."""
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
    """Later waves, for what nobody elsewhere and nobody here waits for.

    What such a node reads may then leave later, together with more.
    """
    delayed = list(waves)
    # The first wave that somebody reads each node in.
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
    """By the two places, when what travels between them may leave."""
    crossings: dict[tuple[str, str], _Departures] = collections.defaultdict(
        dict
    )

    def add(what: Output | int, earlier: int, reader: int) -> None:
        departures = crossings[
            # Neither is None: what is everywhere does not travel.
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
    """The fewest waves that everything can leave in, and what leaves when.

    As for any intervals that are to be hit by points: the one that ends first
    is hit last thing, together with all that have begun by then.
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
