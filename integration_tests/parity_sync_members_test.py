"""Tests that three workers in step give the numbers of one process.

There is one parameter server; `parity_sync_test` has two workers and two of
them. `shared_sync_parity` has the model, its data and the reference.
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
