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
        {"probability": 0.0},
        {"counts": "all"},
    ],
    ids=str,
)
def test_an_admission_out_of_range_is_named(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(errors.InputError, match=f"Received: {name}="):
        Admission(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"beyond_capacity": "oldest"},
        {"unseen_steps": 0},
        {"unseen_seconds": -1.0},
        {"unseen_steps": 5, "unseen_seconds": 1.0},
        {"beyond_capacity": None},
    ],
    ids=str,
)
def test_an_eviction_that_means_nothing_is_refused(
    arguments: dict[str, Any],
) -> None:
    with pytest.raises(errors.InputError, match="Received: "):
        Eviction(**arguments)
