"""Tests that steps keep their numbers while parameter servers come and go."""

from typing import Any

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


def _assert_same_numbers(
    cluster: tfps.LocalCluster, name: str, make: Any, **options: Any
) -> None:
    """Checks training with an optimizer while a ps leaves and comes back."""
    changes = PsChanges(cluster, {4: 0}, {9: 0})
    actual = parity.on_cluster(
        cluster,
        lambda: parity.new_model(make()),
        _DATA.of_worker,
        callbacks=[changes],
        **options,
    )
    assert changes.num_changes == 2
    parity.assert_same(
        actual,
        parity.in_one_process(name, 2),
        parity.TOLERANCES.get(name, parity.TOLERANCE),
    )


@pytest.mark.sample(cases=2)
@pytest.mark.parametrize("name", parity.CASES)
def test_every_optimizer_and_option_has_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str
) -> None:
    _assert_same_numbers(cluster, name, parity.CASES[name])


@pytest.mark.sample(cases=1)
@pytest.mark.parametrize("name", shared_optimizers.WHOLE_MATRIX)
def test_optimizers_of_whole_matrices_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str
) -> None:
    make = shared_optimizers.WHOLE_MATRIX[name]
    _assert_same_numbers(cluster, name, make, partitioner=None)
