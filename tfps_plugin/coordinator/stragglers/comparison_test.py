"""Tests of workers that are compared with each other."""

import random
import statistics

import pytest

from tfps_plugin.coordinator.stragglers import comparison


@pytest.mark.parametrize("number", [2, 3, 4, 5, 9])
def test_medians_of_others_are_those_of_lists_without_each(
    number: int,
) -> None:
    chance = random.Random(number)
    for _ in range(20):
        # With equal ones among them.
        values = [float(chance.randrange(6)) for _ in range(number)]
        assert comparison.medians_of_others(values) == [
            statistics.median(values[:index] + values[index + 1 :])
            for index in range(number)
        ]
