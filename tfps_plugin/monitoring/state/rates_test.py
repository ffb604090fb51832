import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.monitoring.state.rates import Rates


def test_a_first_reading_has_no_rate() -> None:
    assert Rates().of("steps", 100, 0.0) is None


def test_a_rate_is_the_growth_of_the_last_ten_seconds() -> None:
    rates = Rates()
    for second in range(60):
        # Ten a second at first, then a hundred.
        value = 10 * min(second, 30) + 100 * max(0, second - 30)
        rate = rates.of("steps", value, float(second))
    assert rate == pytest.approx(100)


def test_a_counter_that_begins_anew_has_no_negative_rate() -> None:
    rates = Rates()
    rates.of("examples", 0, 0.0)
    assert rates.of("examples", 50, 1.0) == pytest.approx(50)
    assert rates.of("examples", 3, 2.0) is None
    assert rates.of("examples", 13, 3.0) == pytest.approx(10)


def test_a_pause_shows_within_ten_seconds() -> None:
    rates = Rates()
    for second in range(20):
        rates.of("steps", 100 * second, float(second))
    for second in range(20, 32):
        rate = rates.of("steps", 1900, float(second))
    assert rate == 0


def test_a_viewer_that_comes_back_sees_the_rate_since_it_left() -> None:
    rates = Rates()
    rates.of("steps", 0, 0.0)
    rates.of("steps", 10, 1.0)
    assert rates.of("steps", 1010, 101.0) == pytest.approx(10)


def test_counters_that_are_gone_are_forgotten() -> None:
    rates = Rates()
    for second in (0, 1):
        for name in ("kept", "gone"):
            rates.of(name, 10 * second, float(second))
    rates.keep({"kept"})
    assert rates.of("kept", 20, 2.0) == pytest.approx(10)
    # Another counter of that name has a first reading.
    assert rates.of("gone", 20, 2.0) is None


@given(
    st.lists(
        st.tuples(
            st.floats(0.001, 100), st.integers(min_value=0, max_value=1000)
        ),
        min_size=1,
        max_size=100,
    )
)
def test_a_rate_lies_between_the_slowest_and_the_fastest(
    steps: list[tuple[float, int]],
) -> None:
    rates = Rates()
    now, value = 0.0, 0
    rates.of("any", value, now)
    for seconds, growth in steps:
        now, value = now + seconds, value + growth
        rate = rates.of("any", value, now)
        assert rate is None or rate >= 0
        if rate is not None:
            assert rate <= value / 0.001
