"""Tests of what slow workers are slow at."""

import pytest

from tfps_plugin.coordinator.stragglers import diagnosis
from tfps_plugin.coordinator.stragglers.comparison import SlowWorker


def _slow(excess: float = 0.1, waits: float | None = 0.0) -> SlowWorker:
    return SlowWorker(1, 0, 2.0, 8.0, excess, waits)


@pytest.mark.parametrize(
    ("waits", "is_it"),
    [(0.05, True), (0.2, True), (0.04, False), (-0.01, False), (None, False)],
)
def test_it_is_the_input_if_that_is_half_of_it(
    waits: float | None, *, is_it: bool
) -> None:
    found = diagnosis.of_input(_slow(0.1, waits))
    assert (found is not None) is is_it
    if found is not None:
        assert found.slow_at == "input"
        assert f"{1e3 * (waits or 0):.3g} ms longer" in found.detail


def test_a_slow_link_is_named() -> None:
    found = diagnosis.of_probes(
        _slow(),
        {
            0: {0: 0.001, 1: 0.002},
            1: {0: 0.001, 1: 0.03},
            2: {0: 0.001, 1: 0.004},
        },
        0.5,
    )
    assert found == (
        "network",
        "256 KB take 30 ms from parameter server 1; 3 ms on other workers",
    )


def test_a_worker_may_have_slow_links_to_all() -> None:
    found = diagnosis.of_probes(
        _slow(), {0: {0: 0.001, 1: 0.002}, 1: {0: 0.05, 1: 0.03}}, 0.5
    )
    assert found.slow_at == "network"
    assert "each parameter server, most of all from" in found.detail
    found = diagnosis.of_probes(_slow(), {0: {0: 0.001}, 1: {0: 0.05}}, 0.5)
    assert "from parameter server 0" in found.detail


@pytest.mark.parametrize(
    ("excess", "own"),
    [
        # Not slower than the fraction allows.
        (0.1, 0.0055),
        # Too little to be more than chance.
        (0.001, 0.0038),
        # Too little to explain the step.
        (10.0, 0.1),
    ],
)
def test_otherwise_it_is_the_computation(excess: float, own: float) -> None:
    usual = 0.003
    probes = {0: {0: usual}, 1: {0: own}, 2: {0: usual}}
    assert diagnosis.of_probes(_slow(excess), probes, 0.5).slow_at == "compute"


@pytest.mark.parametrize("probes", [{}, {0: {0: 0.1}}, {1: {0: 0.1}}])
def test_without_probes_two_are_possible(
    probes: dict[int, dict[int, float]],
) -> None:
    found = diagnosis.of_probes(_slow(), probes, 0.5)
    assert found.slow_at == "compute or network"
    assert "could not be measured" in found.detail
