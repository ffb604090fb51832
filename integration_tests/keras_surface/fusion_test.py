"""Tests that combining messages does not change results.

There is one worker, with one step in flight at a time, so that steps run one
after another, and every number is the same bit for bit.
"""

import collections
from collections.abc import Iterator

import pytest

import tfps_plugin as tfps

from . import comparison
from . import model_runs
from . import placements
from .model_table import CASES

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)
_MOST_MESSAGES = 4


@pytest.fixture
def strategy(
    strategy: tfps.ParameterServerStrategy,
) -> Iterator[tfps.ParameterServerStrategy]:
    yield strategy
    strategy.communication = tfps.CommunicationOptions(fusion=True)


@pytest.mark.sample(cases=3)
@pytest.mark.parametrize("placement", placements.NAMES)
@pytest.mark.parametrize("input_kind", ["either"])
@pytest.mark.parametrize("feature", CASES)
def test_results_are_the_same(
    strategy: tfps.ParameterServerStrategy,
    feature: str,
    input_kind: str,
    placement: str,
) -> None:
    del input_kind
    together, model = model_runs.run(feature, strategy)
    explanation = strategy.explain(model, print_fn=None)
    strategy.communication = tfps.CommunicationOptions(fusion=False)
    one_by_one, _ = model_runs.run(feature, strategy)
    comparison.assert_same(together, one_by_one, rtol=0)

    assert explanation.bodies
    for body in explanation.bodies:
        messages: collections.Counter[tuple[str, str, int]] = (
            collections.Counter()
        )
        for sent in body.sent:
            way = (sent.source, sent.destination, sent.wave)
            messages[way] += sent.num_parcels
            # A ps that waits for another one would be lost with it.
            assert not (
                "/job:ps/" in sent.source and "/job:ps/" in sent.destination
            ), str(explanation)
        assert max(messages.values()) <= _MOST_MESSAGES, str(explanation)
