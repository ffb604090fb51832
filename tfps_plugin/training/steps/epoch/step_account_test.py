"""Tests that steps are neither lost nor done twice."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.training.steps.epoch.step_account import Claim
from tfps_plugin.training.steps.epoch.step_account import StepAccount


def test_claims_what_was_asked_for() -> None:
    account = StepAccount()
    account.ask(15)
    claims = [account.claim(10) for _ in range(3)]
    assert [claim.num_steps for claim in claims] == [10, 5, 0]
    assert account.unclaimed == 0
    assert account.claimed == 15


def test_what_was_not_done_can_be_claimed_again() -> None:
    account = StepAccount()
    account.ask(10)
    assert account.settle(account.claim(10), 4)
    assert (account.done, account.unclaimed, account.claimed) == (4, 6, 4)


def test_a_claim_settles_once() -> None:
    account = StepAccount()
    account.ask(10)
    claim = account.claim(10)
    assert account.settle(claim, 0)
    assert not account.settle(claim, 10)
    assert account.done == 0


def test_who_waits_sees_every_change() -> None:
    account = StepAccount()
    account.ask(2)
    claim = account.claim(2)
    before = account.num_changes
    settling = threading.Thread(target=account.settle, args=(claim, 2))
    settling.start()
    while account.done < 2:
        assert settling.is_alive() or account.num_changes > before
        account.wait_for_change(before, 20)
    settling.join(20)
    assert account.num_changes == before + 1
    account.wait_for_change(before + 1, 0.001)
    assert account.num_changes == before + 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "claim", "settle"]), st.integers(0, 9)
        )
    )
)
def test_every_step_is_somewhere(events: list[tuple[str, int]]) -> None:
    account = StepAccount()
    claims: list[Claim] = []
    asked = done = 0
    for event, number in events:
        if event == "ask":
            account.ask(number)
            asked += number
        elif event == "claim":
            claims.append(account.claim(number))
        elif claims:
            claim = claims.pop()
            num_done = min(number, claim.num_steps)
            assert account.settle(claim, num_done)
            done += num_done
        in_progress = sum(claim.num_steps for claim in claims)
        assert account.asked == asked
        assert account.done == done
        assert account.claimed == done + in_progress
        assert account.unclaimed == asked - done - in_progress >= 0
