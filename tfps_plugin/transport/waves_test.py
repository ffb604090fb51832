"""Tests of the tensors of a step that travel together."""

import hypothesis
from hypothesis import strategies as st

from tfps_plugin.transport import waves
from tfps_plugin.transport.waves import Message
from tfps_plugin.transport.waves import Node
from tfps_plugin.transport.waves import Output


def _node(
    place: str | None, *inputs: int, controls: tuple[int, ...] = ()
) -> Node:
    return Node(place, tuple(Output(n, 0) for n in inputs), controls)


def test_values_for_one_place_travel_together() -> None:
    plan = waves.plan(
        [_node("worker"), _node("worker"), _node("ps", 0), _node("ps", 1)]
    )
    assert plan.messages == (
        Message("worker", "ps", 0, (Output(0, 0), Output(1, 0)), ()),
    )


def test_a_value_travels_once_for_all_its_readers() -> None:
    plan = waves.plan([_node("worker"), _node("ps", 0), _node("ps", 0)])
    assert plan.messages == (Message("worker", "ps", 0, (Output(0, 0),), ()),)


def test_what_depends_on_an_answer_travels_later() -> None:
    # Ids go out, rows come back, gradients go out.
    plan = waves.plan(
        [
            _node("worker"),
            _node("ps", 0),
            _node("worker", 1),
            _node("ps", 2),
        ]
    )
    assert plan.waves == (0, 1, 2, 3)
    assert [(m.source, m.wave) for m in plan.messages] == [
        ("worker", 0),
        ("ps", 1),
        ("worker", 2),
    ]


def test_what_is_needed_later_waits_for_company() -> None:
    # Node 3 reads a weight (1) with rows (2), which need ids (0) first.
    plan = waves.plan(
        [_node("worker"), _node("ps"), _node("ps", 0), _node("worker", 1, 2)]
    )
    assert [m for m in plan.messages if m.source == "ps"] == [
        Message("ps", "worker", 1, (Output(1, 0), Output(2, 0)), ())
    ]


def test_what_is_made_of_values_from_elsewhere_is_made_when_needed() -> None:
    # Node 4 joins the two shards of a weight (1, 2), and is read with rows.
    plan = waves.plan(
        [
            _node("worker"),
            _node("ps"),
            _node("ps"),
            _node("ps", 0),
            _node("worker", 1, 2),
            _node("worker", 3, 4),
        ]
    )
    assert plan.waves == (0, 0, 0, 1, 2, 2)
    assert [m.outputs for m in plan.messages if m.source == "ps"] == [
        (Output(1, 0), Output(2, 0), Output(3, 0))
    ]


def test_what_is_needed_at_once_does_not_wait() -> None:
    plan = waves.plan(
        [
            _node("worker"),
            _node("ps"),
            _node("worker", 1),
            _node("ps", 0),
            _node("worker", 3),
        ]
    )
    assert [m.wave for m in plan.messages if m.source == "ps"] == [0, 1]


def test_constants_do_not_travel() -> None:
    plan = waves.plan([_node(None), _node("worker", 0), _node("ps", 0)])
    assert plan.messages == ()
    assert plan.waves == (0, 0, 0)


def test_order_travels_with_values() -> None:
    plan = waves.plan(
        [_node("worker"), _node("worker"), _node("ps", 0, controls=(1,))]
    )
    assert plan.messages == (Message("worker", "ps", 0, (Output(0, 0),), (1,)),)


def test_what_stays_is_in_no_message() -> None:
    plan = waves.plan(
        [
            _node("worker"),
            Node("ps", (Output(0, 0),), (), frozenset({Output(0, 0)})),
        ]
    )
    assert plan.messages == ()
    assert plan.waves == (0, 1)


def test_crossings_are_counted_as_if_each_travelled_alone() -> None:
    nodes = [
        _node("worker"),
        _node("ps", 0),
        _node("ps", 0, controls=(0,)),
        _node(None),
        _node("ps", 3),
    ]
    # One tensor for both of its readers, and the end of one node.
    assert waves.num_crossings(nodes) == 2


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    """Draws graphs of up to 30 nodes on three places."""
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 30))):
        earlier = st.integers(0, number - 1)
        some = st.lists(earlier, max_size=3) if number else st.just([])
        place = draw(st.sampled_from(["worker", "ps 0", "ps 1", None]))
        # Nodes with a copy at every place read nothing.
        inputs = [] if place is None else draw(some)
        controls = [] if place is None else draw(some)
        nodes.append(
            Node(
                place,
                tuple(
                    Output(n, draw(st.integers(0, 1)))
                    for n in dict.fromkeys(inputs)
                ),
                tuple(dict.fromkeys(controls)),
                lasts=draw(st.sampled_from([0, 0, 0, 2])) if place else 0,
            )
        )
    return nodes


@hypothesis.given(graphs())
def test_every_value_arrives_before_it_is_read(nodes: list[Node]) -> None:
    plan = waves.plan(nodes)
    here: set[tuple[Output | int, str | None]] = set()
    made: set[int] = set()
    for step in plan.in_order():
        if isinstance(step, Message):
            carried: list[Output | int] = [*step.outputs]
            carried += step.controls
            for what in carried:
                number = what if isinstance(what, int) else what.node
                assert number in made
                assert nodes[number].place == step.source
                assert (what, step.destination) not in here
                here.add((what, step.destination))
            continue
        node = nodes[step]
        for output in node.inputs:
            maker = nodes[output.node].place
            assert output.node in made
            assert maker in (None, node.place) or (output, node.place) in here
        for earlier in node.controls:
            maker = nodes[earlier].place
            assert earlier in made
            assert maker in (None, node.place) or (earlier, node.place) in here
        made.add(step)
    assert made == set(range(len(nodes)))


@hypothesis.given(graphs())
def test_no_message_is_without_need(nodes: list[Node]) -> None:
    plan = waves.plan(nodes)
    read = {
        (what, node.place)
        for node in nodes
        for what in (*node.inputs, *node.controls)
    }
    for message in plan.messages:
        assert message.outputs or message.controls
        for what in (*message.outputs, *message.controls):
            assert (what, message.destination) in read
    assert len(plan.messages) <= waves.num_crossings(nodes)


@hypothesis.given(graphs())
def test_a_pair_of_places_sends_once_a_wave(nodes: list[Node]) -> None:
    sent = [
        (message.source, message.destination, message.wave)
        for message in waves.plan(nodes).messages
    ]
    assert len(sent) == len(set(sent))


def test_what_asks_other_places_itself_takes_its_time() -> None:
    # The result of a loop (1) leaves later than a value from before it (0).
    nodes = [
        _node("worker"),
        Node("worker", lasts=2),
        _node("ps", 0),
        _node("ps", 1),
        _node("worker", 1, 2),
    ]
    plan = waves.plan(nodes)
    assert plan.waves == (0, 0, 1, 3, 2)
    assert [(m.source, m.wave, m.outputs) for m in plan.messages] == [
        ("worker", 0, (Output(0, 0),)),
        ("ps", 1, (Output(2, 0),)),
        ("worker", 2, (Output(1, 0),)),
    ]
    order = list(plan.in_order())
    for message in plan.messages:
        for output in message.outputs:
            assert order.index(output.node) < order.index(message)
        readers = [
            number
            for number, node in enumerate(nodes)
            if node.place == message.destination
            and set(node.inputs) & set(message.outputs)
        ]
        assert all(order.index(message) < order.index(r) for r in readers)
