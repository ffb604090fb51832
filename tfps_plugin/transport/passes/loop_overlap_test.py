"""Tests of waits that a loop's next iteration can skip."""

from tfps_plugin.transport import waves
from tfps_plugin.transport.passes import loop_overlap
from tfps_plugin.transport.waves import Node
from tfps_plugin.transport.waves import Output


def _node(
    place: str | None, *inputs: int, controls: tuple[int, ...] = ()
) -> Node:
    return Node(place, tuple(Output(n, 0) for n in inputs), controls)


def test_what_a_round_returns_does_not_wait_for_updates() -> None:
    nodes = [
        _node("worker"),
        _node("ps", 0),  # an update
        _node("worker", 0, controls=(1,)),  # a result of the iteration
    ]
    changed, unasked = loop_overlap.without_answers(
        nodes, [1], {1}, here="worker"
    )
    assert unasked == {1}
    assert [m.source for m in waves.plan(changed).messages] == ["worker"]


def test_effects_on_the_worker_stay_in_order() -> None:
    nodes = [
        _node("worker"),
        _node("ps", 0),
        _node("worker", 0, controls=(1,)),
        _node("worker", 2),  # a print, for example
    ]
    changed, unasked = loop_overlap.without_answers(
        nodes, [1, 3], {1, 3}, here="worker"
    )
    assert changed == nodes
    assert unasked == {1}


def test_what_another_place_needs_stays_in_order() -> None:
    nodes = [
        _node("worker"),
        _node("ps 0", 0),
        _node("worker", 0, controls=(1,)),
        _node("ps 1", 2),
    ]
    changed, unasked = loop_overlap.without_answers(
        nodes, [1, 3], {1, 3}, here="worker"
    )
    assert changed == nodes
    assert unasked == {1, 3}


def test_the_end_of_a_round_waits_for_what_has_no_effect() -> None:
    # TensorFlow would prune it.
    nodes = [_node("worker"), _node("ps", 0)]
    changed, unasked = loop_overlap.without_answers(
        nodes, [1], set(), here="worker"
    )
    assert changed == nodes
    assert not unasked
