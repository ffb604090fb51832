"""Tests of cached rows whose worker or parameter server dies."""

import pathlib
from collections.abc import Callable
from collections.abc import Iterator

import pytest
import shared_cached
import shared_copies
from shared_training import Seen

import tfps_plugin as tfps

pytestmark = pytest.mark.sample(cases=1, group="faults_cached")

_MAX_AGE_STEPS = 1_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=1, num_ps=2) as cluster:
        yield cluster


Make = Callable[..., tfps.ParameterServerStrategy]
_ONE_CALL = tfps.SchedulingOptions(max_closures_in_flight_per_worker=1)


@pytest.fixture
def strategy(make: Make) -> tfps.ParameterServerStrategy:
    return make(
        scheduling=_ONE_CALL,
        recovery=tfps.RecoveryOptions(restore="consistent"),
    )


def _model(strategy: tfps.ParameterServerStrategy) -> shared_cached.Telling:
    return shared_cached.telling(
        strategy, cache_rows=1_000, cache_max_age_steps=_MAX_AGE_STEPS
    )


def test_a_worker_that_is_replaced_begins_with_an_empty_cache(
    cluster: tfps.LocalCluster, strategy: tfps.ParameterServerStrategy
) -> None:
    model = _model(strategy)
    assert shared_cached.ages_seen(model, 4)[-1][1] > 0.0
    cluster.kill("worker", 0)
    cluster.start("worker", 0)
    assert shared_cached.ages_seen(model, 1) == [(0.0, 0.0)]
    statistics = model.embed.cache_statistics()
    assert statistics["hits"] == 0
    assert statistics["asked"] == shared_cached.NUM_ROWS


@pytest.mark.parametrize("index", [0, 1])
def test_no_row_of_before_the_loss_of_a_ps_is_used(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    tmp_path: pathlib.Path,
    index: int,
) -> None:
    model = _model(strategy)
    seen = Seen(tfps.ClusterCoordinator(strategy))
    assert shared_cached.ages_seen(model, 2)
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(model=model), str(tmp_path), max_to_keep=1
    )
    manager.save()
    assert shared_cached.ages_seen(model, 8)[-1][1] > 0.0
    cluster.kill("ps", index)
    cluster.start("ps", index)
    # Both the rows and the number of steps go back to the checkpoint.
    assert shared_cached.ages_seen(model, 3)[0] == (0.0, 0.0)
    assert float(model.made) == 2.0 + 3.0
    assert seen.of(tfps.events.ParameterServerRecovered)


@pytest.mark.parametrize("index", [0, 1])
def test_rows_of_a_lost_ps_are_those_of_its_copy(
    cluster: tfps.LocalCluster, make: Make, index: int
) -> None:
    # After the first steps, only this test updates the copies.
    strategy = make(
        scheduling=_ONE_CALL,
        recovery=tfps.RecoveryOptions(
            replicate="ps", replicate_every_steps=1_000_000
        ),
    )
    model = _model(strategy)
    seen = Seen(tfps.ClusterCoordinator(strategy))
    assert shared_cached.ages_seen(model, 2)
    shared_copies.wait_for_copies(strategy)
    shared_copies.copies_of(strategy).update()
    assert shared_cached.ages_seen(model, 8)[-1][1] > 0.0
    cluster.kill("ps", index)
    cluster.start("ps", index)
    youngest, oldest = shared_cached.ages_seen(model, 1)[0]
    # The other parameter server has seen eight steps more, and perhaps the
    # step that failed and ran again.
    assert oldest - youngest in (8.0, 9.0)
    assert seen.of(tfps.events.ParameterServerRecovered)
