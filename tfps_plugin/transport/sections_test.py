"""Tests of the operations that a lock waits for."""

from tfps_plugin.transport import sections
from tfps_plugin.transport import waves
from tfps_plugin.transport.waves import Message
from tfps_plugin.transport.waves import Node
from tfps_plugin.transport.waves import Output

_GRADIENT = Output(0, 0)


def test_a_lock_waits_for_what_its_section_is_given() -> None:
    nodes = [
        Node("worker"),
        Node("ps"),  # takes the lock
        Node("ps", (_GRADIENT,), (1,)),
        Node("ps", (), (2,)),  # gives it back
    ]
    changed = sections.before_locks(nodes, {1: [3]})
    assert changed[1].inputs == (_GRADIENT,)
    assert [changed[0], *changed[2:]] == [nodes[0], *nodes[2:]]


def test_a_lock_waits_for_what_its_section_runs_after_there() -> None:
    # The first may wait for a lock itself, which another worker holds.
    nodes = [
        Node("ps"),
        Node("ps"),  # takes the lock
        Node("ps", (), (1, 0)),
        Node("ps", (), (2,)),  # gives it back
    ]
    changed = sections.before_locks(nodes, {1: [3]})
    assert changed[1].controls == (0,)


def test_a_section_is_given_nothing_that_leaves_after_its_lock() -> None:
    # The gradient of the first section could travel with that of the second,
    # which depends on a result of another section.
    nodes = [
        Node("worker"),
        Node("ps", (), (0,)),  # takes the first lock
        Node("ps", (_GRADIENT,), (1,)),
        Node("ps", (), (2,)),  # gives it back
        Node("worker", (Output(2, 0),)),
        Node("ps", (), (4,)),  # takes the second
        Node("ps", (Output(4, 0), _GRADIENT), (5,)),
        Node("ps", (), (6,)),  # gives it back
    ]
    plan = waves.plan(sections.before_locks(nodes, {1: [3], 5: [7]}))
    assert [m for m in plan.messages if m.destination == "ps"] == [
        Message("worker", "ps", 0, (_GRADIENT,), (0,)),
        Message("worker", "ps", 2, (Output(4, 0),), (4,)),
    ]


def test_what_travels_within_a_section_is_left_alone() -> None:
    nodes = [
        Node("ps"),  # takes the lock
        Node("ps", (), (0,)),
        Node("worker", (Output(1, 0),)),
        Node("ps", (Output(2, 0),)),
        Node("ps", (), (3,)),  # gives it back
    ]
    changed = sections.before_locks(nodes, {0: [4]})
    assert changed[3].stays == {Output(2, 0)}
    assert changed[2].stays == {Output(1, 0)}
    assert waves.plan(changed).messages == ()


def test_order_within_a_section_is_left_alone_too() -> None:
    nodes = [
        Node("worker"),
        Node("ps", (), (0,)),  # takes the lock
        Node("worker", (), (1,)),
        Node("ps", (), (2, 0)),
        Node("ps", (), (3,)),  # gives it back
    ]
    changed = sections.before_locks(nodes, {1: [4]})
    assert changed[2].stays == {1}
    assert changed[3].stays == {2}
    assert waves.plan(changed).messages == (
        Message("worker", "ps", 0, (), (0,)),
    )


def test_a_lock_is_given_back_without_waiting_for_others() -> None:
    nodes = [
        Node("ps 0"),  # takes a lock
        Node("ps 0", (), (0,)),
        Node("ps 0", (), (1,)),  # gives it back
        Node("ps 1"),  # takes another
        Node("ps 1", (), (3,)),
        Node("ps 1", (), (2, 4)),  # gives it back
    ]
    changed = sections.before_locks(nodes, {0: [2], 3: [5]})
    assert changed[5].controls == (4,)
    assert changed[2].controls == (1,)
    assert waves.plan(changed).messages == ()


def test_a_lock_does_not_wait_for_what_one_inside_is_given_back_after() -> None:
    nodes = [
        Node("ps 0"),  # takes a lock
        Node("ps 0", (), (0,)),  # gives it back
        Node("ps 1"),  # takes another
        Node("ps 1", (), (2,)),  # takes a third, inside
        Node("ps 1", (), (3, 1)),  # gives the third back
        Node("ps 1", (), (2, 4)),  # gives the other back
    ]
    changed = sections.before_locks(nodes, {0: [1], 2: [5], 3: [4]})
    assert changed[2].controls == ()
    assert changed[4].controls == (3,)
    assert changed[5].controls == (2, 4)
    assert waves.plan(changed).messages == ()


def test_constants_are_there_already() -> None:
    nodes = [
        Node(None),
        Node("ps"),  # takes the lock
        Node("ps", (Output(0, 0),), (1,)),
        Node("ps", (), (2,)),  # gives it back
    ]
    assert sections.before_locks(nodes, {1: [3]}) == nodes


def test_a_lock_waits_for_what_is_made_beside_it() -> None:
    nodes = [
        Node("worker"),
        Node("ps", (_GRADIENT,)),
        Node("ps"),  # takes the lock
        Node("ps", (Output(1, 0),), (2,)),
        Node("ps", (), (3,)),  # gives it back
    ]
    changed = sections.before_locks(nodes, {2: [4]})
    assert changed[2].controls == (1,)
    assert waves.plan(changed).waves == (0, 1, 1, 1, 1)
