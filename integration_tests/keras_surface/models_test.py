"""Tests that every kind of model trains, evaluates and predicts the same.

With one worker and one step in flight, training on a cluster is not
asynchronous, and single-process Keras is the reference.
"""

import functools
from typing import Any

import pytest

import tfps_plugin as tfps

from . import comparison
from . import model_runs
from . import placements
from .model_table import CASES

pytestmark = [
    pytest.mark.compat,
    pytest.mark.cluster(num_workers=1, num_ps=2),
]


@pytest.fixture(scope="module")
def alone(cluster: Any) -> Any:
    """Returns cached runs in one process."""
    return functools.cache(model_runs.run)


@pytest.mark.sample(cases=6)
@pytest.mark.parametrize("placement", placements.NAMES)
@pytest.mark.parametrize("feature", CASES)
def test_model(
    strategy: tfps.ParameterServerStrategy,
    alone: Any,
    feature: str,
    placement: str,
) -> None:
    comparison.assert_same(
        model_runs.run(feature, strategy)[0],
        alone(feature)[0],
        rtol=CASES[feature].rtol,
    )
