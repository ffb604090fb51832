"""Tests of the numbers of steps by the calls of members."""

from tfps_plugin.training.bounded.member_calls import MemberCalls


def test_calls_that_came_to_their_end_count() -> None:
    calls = MemberCalls()
    for num_steps in (10, 3):
        assert calls.begins(1, num_steps)
        calls.has_ended(1, num_steps)
    assert calls.begins(2, 10)
    assert [calls.num_done(worker) for worker in range(3)] == [0, 13, 0]


def test_a_member_that_has_left_begins_no_call() -> None:
    calls = MemberCalls()
    calls.leaves(1)
    assert not calls.begins(1, 10)
    assert calls.begins(0, 10)


def test_one_step_of_a_lost_member_is_in_doubt() -> None:
    calls = MemberCalls()
    assert calls.begins(1, 10)
    calls.has_ended(1, 10)
    assert calls.begins(1, 10)
    # The parameter servers have seen four steps of the second call.
    assert calls.num_in_doubt(1, 14) == 1
    # They have seen all of them: the end of the call is lost, and nothing else.
    assert calls.num_in_doubt(1, 20) == 0


def test_a_call_is_in_doubt_if_no_ps_tells() -> None:
    calls = MemberCalls()
    assert calls.begins(1, 10)
    assert calls.num_in_doubt(1, None) == 10
    assert calls.num_in_doubt(0, None) == 0


def test_nothing_is_in_doubt_after_the_end_of_the_input() -> None:
    calls = MemberCalls()
    assert calls.begins(1, 10)
    calls.has_ended(1, 4)
    assert calls.num_in_doubt(1, 4) == 0
    assert calls.num_in_doubt(1, None) == 0
