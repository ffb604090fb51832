"""Tests that steps keep their numbers while parameter servers come and go."""

import pytest
import shared_optimizers
import shared_sync_parity as parity
from shared_ps_changes import PsChanges

import tfps_plugin as tfps
from tfps_plugin.recovery.incremental import row_marks

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=3)

_DATA = parity.Data(2)


@pytest.fixture(autouse=True, params=["by rows", "whole"])
def tables(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lets small tables move as large ones do, or as small ones."""
    if request.param == "by rows":
        monkeypatch.setattr(row_marks, "SMALLEST_TABLE_BYTES", 0)


def _changes(cluster: tfps.LocalCluster) -> PsChanges:
    return PsChanges(cluster, {4: 0}, {9: 0})


@pytest.mark.sample(cases=2)
@pytest.mark.parametrize("name", parity.CASES)
def test_every_optimizer_and_option_has_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str
) -> None:
    changes = _changes(cluster)
    actual = parity.on_cluster(
        cluster,
        lambda: parity.new_model(parity.CASES[name]()),
        _DATA.of_worker,
        callbacks=[changes],
    )
    assert changes.num_changes == 2
    parity.assert_same(
        actual,
        parity.in_one_process(name, 2),
        parity.TOLERANCES.get(name, parity.TOLERANCE),
    )


@pytest.mark.sample(cases=1)
@pytest.mark.parametrize("name", shared_optimizers.WHOLE_MATRIX)
def test_optimizers_of_whole_matrices_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str
) -> None:
    changes = _changes(cluster)
    actual = parity.on_cluster(
        cluster,
        lambda: parity.new_model(shared_optimizers.WHOLE_MATRIX[name]()),
        _DATA.of_worker,
        partitioner=None,
        callbacks=[changes],
    )
    assert changes.num_changes == 2
    parity.assert_same(
        actual,
        parity.in_one_process(name, 2),
        parity.TOLERANCES.get(name, parity.TOLERANCE),
    )
