"""Tests that one worker keeps its numbers while parameter servers change."""

from typing import Any

import pytest
import shared_optimizers
import shared_sync_parity as parity
from shared_ps_changes import PsChanges

import tfps_plugin as tfps
from tfps_plugin.recovery.incremental import row_marks

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=3)

_DATA = parity.Data(1)
_CONSISTENCIES = {
    "async": tfps.Async(),
    "bounded": tfps.BoundedStaleness(3),
}
_CAUGHT_UP = {
    name: make
    for name, make in shared_optimizers.EVERY.items()
    if name != "ScheduleFreeAdamW"
}


@pytest.fixture(autouse=True)
def _by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets small tables move as large ones do."""
    monkeypatch.setattr(row_marks, "SMALLEST_TABLE_BYTES", 0)


def _trained(
    cluster: tfps.LocalCluster,
    make: Any,
    consistency: Any = None,
    sparse_update: str = "exact",
    **options: Any,
) -> parity.Trained:
    changes = PsChanges(cluster, {4: 0}, {9: 0})
    trained = parity.on_cluster(
        cluster,
        lambda: parity.new_model(make()),
        _DATA.of_worker,
        sparse_update=sparse_update,
        strategy_options={
            "consistency": consistency or tfps.Async(),
            "scheduling": tfps.SchedulingOptions(
                max_closures_in_flight_per_worker=1
            ),
        },
        callbacks=[changes],
        **options,
    )
    assert changes.num_changes == 2
    return trained


@pytest.mark.sample(cases=2)
@pytest.mark.parametrize("name", parity.CASES)
@pytest.mark.parametrize("consistency", _CONSISTENCIES)
def test_every_optimizer_and_option_has_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, consistency: str, name: str
) -> None:
    actual = _trained(cluster, parity.CASES[name], _CONSISTENCIES[consistency])
    parity.assert_same(
        actual,
        parity.in_one_process(name, 1),
        parity.TOLERANCES.get(name, parity.TOLERANCE),
    )


@pytest.mark.sample(cases=2)
@pytest.mark.parametrize("name", _CAUGHT_UP)
def test_rows_that_catch_up_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str
) -> None:
    actual = _trained(cluster, _CAUGHT_UP[name], sparse_update="caught_up")
    parity.assert_same(
        actual, parity.in_one_process(name, 1), 10 * parity.TOLERANCE
    )
