"""Tests of the number of steps that members of a span make."""

from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.training.bounded import shares


@given(
    st.integers(0, 1000),
    st.lists(st.integers(0, 50), min_size=1, max_size=9, unique=True),
)
def test_shares_add_up_and_differ_by_one_at_most(
    num_steps: int, members: list[int]
) -> None:
    found = shares.shares(num_steps, members)
    assert list(found) == members
    assert sum(found.values()) == num_steps
    assert max(found.values()) - min(found.values()) <= 1


def test_a_span_is_long_compared_with_the_bound() -> None:
    assert shares.steps_of_a_member(10, 0) == 10
    assert shares.steps_of_a_member(10, 2) == 10
    assert shares.steps_of_a_member(10, 100) == 400


def test_the_chief_holds_few_batches() -> None:
    assert shares.batches_of_a_member(10, 0) == 10
    assert shares.batches_of_a_member(10, 4) == 16
    assert shares.batches_of_a_member(10, 100) == 20
