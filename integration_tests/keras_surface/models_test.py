"""Every kind of model trains, is evaluated and predicts as in one process.

On one worker, with one step in flight at a time: then training on a cluster
is no longer asynchronous, and single-process Keras is the truth.
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
    """Runs in one process, each once."""
    return functools.cache(model_runs.run)


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
