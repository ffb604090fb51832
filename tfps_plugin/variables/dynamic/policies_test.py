"""Tests of the rules by which ids get rows, and lose them."""

from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.variables.dynamic.policies import Admission
from tfps_plugin.variables.dynamic.policies import Eviction


@pytest.mark.parametrize(
    "arguments",
    [
        {"min_lookups": 0},
        {"min_lookups": 1.5},
        {"min_lookups": True},
        {"min_lookups": "3"},
        {"min_lookups": None},
        {"probability": 0.0},
        {"probability": 1.5},
        {"probability": "x"},
        {"probability": True},
        {"probability": float("nan")},
        {"counts": "all"},
        {"counts": None},
    ],
    ids=str,
)
def test_an_admission_out_of_range_is_named(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    # What was expected, what was received, and what to do next.
    told = rf"`{name}` of an Admission.*expected.*Received: {name}=.*\. [A-Z]"
    with pytest.raises(errors.InputError, match=told):
        Admission(**arguments)


def test_exact_counts_are_of_few_bits() -> None:
    Admission(2**20 - 1, counts="exact")
    with pytest.raises(errors.InputError, match=r"at most 1048575.*filter"):
        Admission(2**20, counts="exact")


@pytest.mark.parametrize(
    "arguments",
    [
        {"beyond_capacity": "oldest"},
        {"beyond_capacity": 3},
        {"unseen_steps": 0},
        {"unseen_steps": "5"},
        {"unseen_steps": 2.5},
        {"unseen_steps": True},
        {"unseen_seconds": -1.0},
        {"unseen_seconds": True},
        {"unseen_seconds": "5"},
        {"unseen_seconds": float("nan")},
        {"unseen_seconds": float("inf")},
        {"unseen_steps": 5, "unseen_seconds": 1.0},
        {"beyond_capacity": None},
    ],
    ids=str,
)
def test_an_eviction_that_means_nothing_is_refused(
    arguments: dict[str, Any],
) -> None:
    (name, *_) = arguments
    told = rf"Eviction.*expected.*Received: .*{name}=.*\. [A-Z]"
    with pytest.raises(errors.InputError, match=told):
        Eviction(**arguments)


def test_seconds_may_be_whole_or_not() -> None:
    assert Eviction(unseen_seconds=5) == Eviction(unseen_seconds=5.0)
