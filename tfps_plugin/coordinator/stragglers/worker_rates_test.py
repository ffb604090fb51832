"""Tests of the rates of workers."""

import heapq
import random
from collections.abc import Callable
from collections.abc import Sequence

import pytest

from tfps_plugin.coordinator.stragglers.comparison import Comparison
from tfps_plugin.coordinator.stragglers.windows import Observation
from tfps_plugin.coordinator.stragglers.worker_rates import WorkerRates

_KIND = "fit"
_STEPS = 10
# Steps come in calls that are so many times as long, to be long enough.
_TIMES = 4


def _calls(
    rates: WorkerRates,
    worker_index: int,
    seconds: Sequence[float],
    *,
    waits: float | None = 0.0,
    generation: int = 0,
    kind: str = _KIND,
    lane: int | None = None,
    together: bool = False,
) -> None:
    """Makes calls, one after another; an additional first one is ignored.

    Each has a number of steps, of which `_STEPS` take so many seconds.
    """
    lane = worker_index if lane is None else lane
    for each in (1000.0, *seconds):
        made = Observation(
            _TIMES * _STEPS,
            _TIMES * each,
            None if waits is None else _TIMES * waits,
        )
        rates.observe(
            kind,
            "work",
            (worker_index, generation),
            lane,
            made,
            together=together,
        )


def _compare(rates: WorkerRates, fraction: float = 0.5) -> Comparison:
    return rates.compare(_KIND, range(8), fraction)


def _slow(rates: WorkerRates, fraction: float = 0.5) -> list[int]:
    return [s.worker_index for s in _compare(rates, fraction).slow]


@pytest.fixture
def rates() -> WorkerRates:
    return WorkerRates()


def test_a_worker_below_the_fraction_of_the_median_is_slow(
    rates: WorkerRates,
) -> None:
    for worker_index, seconds in enumerate((1.0, 1.0, 1.2, 2.2)):
        _calls(rates, worker_index, [seconds] * 6, waits=seconds / 10)
    found = _compare(rates)
    (slow,) = found.slow
    assert slow.worker_index == 3
    assert slow.generation == 0
    assert slow.steps_per_second == pytest.approx(_STEPS / 2.2)
    assert slow.median_steps_per_second == pytest.approx(_STEPS)
    assert slow.excess_seconds == pytest.approx(0.12)
    assert slow.input_excess_seconds == pytest.approx(0.012)
    assert found.even == {0, 1, 2}
    assert not _slow(rates, 0.4)


def test_a_worker_in_between_is_neither_slow_nor_even(
    rates: WorkerRates,
) -> None:
    for worker_index, seconds in enumerate((1.0, 1.6)):
        _calls(rates, worker_index, [seconds] * 6)
    assert _compare(rates) == Comparison((), frozenset({0}))


@pytest.mark.parametrize("seconds", [[5.0] * 4, [0.3] * 6])
def test_few_calls_or_seconds_say_nothing(
    rates: WorkerRates, seconds: list[float]
) -> None:
    for worker_index in range(2):
        _calls(rates, worker_index, [0.5] * 8)
    _calls(rates, 2, seconds)
    assert _compare(rates) == Comparison((), frozenset({0, 1}))


def test_a_single_worker_is_not_slow(rates: WorkerRates) -> None:
    _calls(rates, 0, [9.0] * 6)
    assert _compare(rates) == Comparison((), frozenset())


def test_one_long_call_makes_no_worker_slow(rates: WorkerRates) -> None:
    _calls(rates, 0, [1.0] * 8)
    _calls(rates, 1, [1.0] * 7 + [60.0])
    assert not _slow(rates)


def test_only_the_latest_calls_count(rates: WorkerRates) -> None:
    _calls(rates, 0, [1.0] * 8)
    _calls(rates, 1, [4.0] * 8)
    assert _slow(rates) == [1]
    _calls(rates, 1, [1.0] * 16)
    assert _compare(rates).even == {0, 1}


def test_a_worker_that_is_back_starts_afresh(rates: WorkerRates) -> None:
    _calls(rates, 0, [1.0] * 8)
    _calls(rates, 1, [4.0] * 8)
    _calls(rates, 1, [1.0] * 6, generation=1)
    assert _compare(rates).even == {0, 1}
    # What still comes of the lost one counts no more.
    _calls(rates, 1, [4.0] * 16)
    assert _compare(rates).even == {0, 1}


def test_workers_that_are_away_do_not_count(rates: WorkerRates) -> None:
    _calls(rates, 0, [1.0] * 8)
    _calls(rates, 1, [4.0] * 8)
    assert rates.compare(_KIND, [1, 2], 0.5) == Comparison((), frozenset())
    assert [each.worker_index for each in rates.rates([1, 2])] == [1]


def test_kinds_of_work_are_compared_by_themselves(rates: WorkerRates) -> None:
    _calls(rates, 0, [1.0] * 8)
    _calls(rates, 1, [4.0] * 8, kind="evaluate")
    assert not _slow(rates)
    assert [each.worker_index for each in rates.rates(range(2))] == [1]


def test_old_kinds_are_forgotten(rates: WorkerRates) -> None:
    _calls(rates, 0, [1.0] * 8)
    for number in range(16):
        _calls(rates, 1, [1.0], kind=f"function {number}")
    assert _compare(rates) == Comparison((), frozenset())


def test_calls_at_the_same_time_add_to_the_rate(rates: WorkerRates) -> None:
    _calls(rates, 0, [2.0] * 5)
    for lane in (2, 3):
        _calls(rates, 1, [2.0] * 5, lane=lane)
    one, two = rates.rates(range(2))
    assert one.steps_per_second == pytest.approx(_STEPS / 2)
    assert two.steps_per_second == pytest.approx(_STEPS)
    assert one.seconds_per_step == pytest.approx(0.2)
    assert two.seconds_per_step == pytest.approx(0.2)
    # Of each second, one has 5 steps, and two has 10.
    assert one.expected_staleness == pytest.approx(0.2 * 15 - 1)
    assert two.expected_staleness == pytest.approx(0.2 * 15 - 1)


def test_short_calls_count_as_one(rates: WorkerRates) -> None:
    _calls(rates, 0, [0.01] * 1000, waits=0.001)
    _calls(rates, 1, [0.04] * 1000, waits=0.001)
    (slow,) = _compare(rates).slow
    assert slow.worker_index == 1
    assert slow.input_excess_seconds == pytest.approx(0.0)
    fast, _ = rates.rates(range(2))
    assert fast.steps_per_second == pytest.approx(1000.0)
    assert fast.input_share == pytest.approx(0.1)
    assert fast.num_steps < 1000 * _TIMES * _STEPS


def test_calls_without_steps_say_nothing(rates: WorkerRates) -> None:
    for _ in range(8):
        rates.observe(_KIND, "work", (0, 0), 0, Observation(0, 1.0))
    assert not rates.rates(range(2))


def test_rates_say_all_that_is_known(rates: WorkerRates) -> None:
    assert not rates.rates(range(2))
    _calls(rates, 0, [1.0] * 6, waits=0.25)
    _calls(rates, 1, [4.0] * 6, waits=None)
    rates.note_retry(1)
    fast, slow = rates.rates(range(2))
    assert fast.work == "work"
    assert fast.input_share == pytest.approx(0.25)
    assert fast.num_steps == 6 * _TIMES * _STEPS
    assert fast.num_retries == 0
    # The slow one makes 2.5 steps a second, and a step takes 0.1 s.
    assert fast.expected_staleness == pytest.approx(0.25)
    assert slow.input_share is None
    assert slow.num_retries == 1
    assert rates.num_retries() == {1: 1}
    assert slow.expected_staleness == pytest.approx(4.0)
    (found,) = _compare(rates).slow
    assert found.input_excess_seconds is None


def test_one_long_wait_for_input_makes_no_worker_slow(
    rates: WorkerRates,
) -> None:
    for worker_index in range(2):
        _calls(rates, worker_index, [1.0] * 8, together=True)
        # Both wait for the batch of one.
        made = Observation(_TIMES * _STEPS, 100.0, 96.0 * worker_index)
        rates.observe(
            _KIND, "work", (worker_index, 0), worker_index, made, together=True
        )
    assert _compare(rates) == Comparison((), frozenset({0, 1}))


@pytest.mark.parametrize(
    ("waits", "is_slow", "is_even"),
    [(0.7, True, False), (0.4, False, False), (0.2, False, True)],
)
def test_of_steps_made_together_the_input_tells(
    rates: WorkerRates, waits: float, *, is_slow: bool, is_even: bool
) -> None:
    for worker_index, each in enumerate((0.1, 0.1, 0.1 + waits)):
        _calls(rates, worker_index, [1.0] * 8, waits=each, together=True)
    found = _compare(rates)
    assert (2 in found.even) is is_even
    assert [each.worker_index for each in found.slow] == [2] * is_slow
    for slow in found.slow:
        assert slow.is_waited_for
        assert slow.steps_per_second == pytest.approx(_STEPS)
        assert slow.median_steps_per_second == pytest.approx(_STEPS / 0.3)
        assert slow.input_excess_seconds == slow.excess_seconds
    assert rates.rates(range(3))[0].expected_staleness is None
    assert rates.relative(_KIND, 2) == 1.0


def test_relative_speeds_are_those_of_the_last_comparison(
    rates: WorkerRates,
) -> None:
    for worker_index, seconds in enumerate((0.5, 1.0, 4.0)):
        _calls(rates, worker_index, [seconds] * 8)
    assert rates.relative(_KIND, 2) == 1.0
    _compare(rates)
    found = [rates.relative(_KIND, i) for i in range(4)]
    assert found == pytest.approx([1, 1, 0.75 / 4, 1])
    assert rates.relative("another", 2) == 1.0


# Returns by how many times the call of a worker, at a time, takes longer.
Noise = Callable[[int, float], float]


def _by_chance(sigma: float) -> Noise:
    chance = random.Random(0)
    return lambda worker_index, at: chance.lognormvariate(0.0, sigma)


def _neighbours(lasts: float, every: float) -> Noise:
    """Other programs, which each machine runs for some seconds at a time."""
    chance = random.Random(0)
    begins = [chance.expovariate(1 / every) for _ in range(8)]

    def noise(worker_index: int, at: float) -> float:
        if at > begins[worker_index] + lasts:
            begins[worker_index] = at + chance.expovariate(1 / every)
        is_slow = at >= begins[worker_index]
        return (3.0 if is_slow else 1.0) * chance.lognormvariate(0.0, 0.15)

    return noise


def _reports(
    num_workers: int, num_lanes: int, seconds: float, noise: Noise, until: float
) -> list[tuple[int, float]]:
    """Makes calls that take so long but for the noise.

    Returns:
        Workers that become slow, and when.
    """
    rates, slow, reports = WorkerRates(), set[int](), []
    # (end, worker, lane, time that it took)
    calls = [
        (0.0, worker_index, lane, 1.0)
        for worker_index in range(num_workers)
        for lane in range(num_lanes)
    ]
    compared_at = 0.0
    while (now := calls[0][0]) < until:
        _, worker_index, lane, took = calls[0]
        made = Observation(_STEPS, took, 0.0)
        rates.observe(_KIND, "work", (worker_index, 0), lane, made)
        took = seconds * noise(worker_index, now)
        heapq.heapreplace(calls, (now + took, worker_index, lane, took))
        if now < compared_at + 1.0:
            continue
        compared_at = now
        found = rates.compare(_KIND, range(num_workers), 0.5)
        slow -= found.even
        for each in found.slow:
            if each.worker_index not in slow:
                slow.add(each.worker_index)
                reports.append((each.worker_index, now))
    return reports


_CLUSTERS = [(2, 1, 1.0), (8, 1, 1.0), (4, 2, 1.0), (2, 4, 4.0), (2, 2, 0.1)]


@pytest.mark.parametrize(("num_workers", "num_lanes", "seconds"), _CLUSTERS)
@pytest.mark.parametrize(
    "noise",
    [
        lambda: _by_chance(0.3),
        lambda: _by_chance(0.7),
        lambda: _neighbours(3.0, 60.0),
        lambda: _neighbours(10.0, 300.0),
    ],
    ids=["little", "much", "hiccups", "neighbours"],
)
def test_noise_makes_no_worker_slow(
    num_workers: int, num_lanes: int, seconds: float, noise: Callable[[], Noise]
) -> None:
    assert not _reports(num_workers, num_lanes, seconds, noise(), 600.0)


@pytest.mark.parametrize(("num_workers", "num_lanes", "seconds"), _CLUSTERS)
@pytest.mark.parametrize("since", [0.0, 60.0])
def test_a_slow_worker_is_found_once_in_spite_of_noise(
    num_workers: int, num_lanes: int, seconds: float, since: float
) -> None:
    chance = _by_chance(0.15)

    def noise(worker_index: int, at: float) -> float:
        is_slow = worker_index == 1 and at >= since
        return (3.0 if is_slow else 1.0) * chance(worker_index, at)

    ((worker_index, at),) = _reports(
        num_workers, num_lanes, seconds, noise, since + 300.0
    )
    assert worker_index == 1
    # Three in four of sixteen spans, each of a call that is three times as
    # long.
    assert at < since + 16 * max(3 * seconds, 2.0) + 10.0
