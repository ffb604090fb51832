"""Tests of the number of functions that a worker runs at a time."""

import pytest

from tfps_plugin.coordinator.in_flight_limits import InFlightLimits


@pytest.mark.parametrize(
    ("per_worker", "prefetch_embeddings", "expected"),
    [
        (None, None, InFlightLimits(at_first=2, most=4, least=1)),
        (None, False, InFlightLimits(at_first=2, most=4, least=1)),
        (None, True, InFlightLimits(at_first=2, most=4, least=2)),
        (3, True, InFlightLimits(at_first=3, most=3, least=3)),
        (1, None, InFlightLimits(at_first=1, most=1, least=1)),
    ],
)
def test_limits_follow_from_the_options(
    per_worker: int | None,
    prefetch_embeddings: bool | None,
    expected: InFlightLimits,
) -> None:
    assert InFlightLimits.choose(per_worker, prefetch_embeddings) == expected
