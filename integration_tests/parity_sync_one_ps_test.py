"""Tests of workers in step with one parameter server.

It needs no help to add up norms, and has all scalars of the optimizer.
"""

import pytest
import shared_sync_parity as parity

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=3, num_ps=1)

_WORKERS = 3


@pytest.mark.sample(cases=1)
@pytest.mark.parametrize("name", parity.CASES)
def test_every_optimizer_and_option_has_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str
) -> None:
    actual = parity.on_cluster(
        cluster,
        lambda: parity.new_model(parity.CASES[name]()),
        parity.Data(_WORKERS).of_worker,
    )
    parity.assert_same(
        actual,
        parity.in_one_process(name, _WORKERS),
        parity.TOLERANCES.get(name, parity.TOLERANCE),
    )
