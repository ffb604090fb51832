"""The clusters and strategies of the suite, shared by all of its tests."""

from collections.abc import Iterator

import pytest

import tfps_plugin as tfps

from . import placements


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[tfps.LocalCluster]:
    """Two parameter servers, and as many workers as a module asks for."""
    with tfps.LocalCluster(num_workers=request.param, num_ps=2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def strategies(
    cluster: tfps.LocalCluster,
) -> Iterator[dict[str, tfps.ParameterServerStrategy]]:
    """A strategy for each placement of variables.

    With one worker, one step is in flight at a time: then training on the
    cluster is as sequential as that of one process.
    """
    in_flight = 1 if len(cluster.cluster_spec.workers) == 1 else 2
    strategies = {
        name: tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            partitioner,
            max_closures_in_flight_per_worker=in_flight,
        )
        for name, partitioner in placements.PARTITIONERS.items()
    }
    # Here, because their threads outlive the test that needs them first.
    coordinators = [tfps.ClusterCoordinator(s) for s in strategies.values()]
    yield strategies
    for coordinator in coordinators:
        coordinator.close()


@pytest.fixture
def strategy(
    strategies: dict[str, tfps.ParameterServerStrategy], placement: str
) -> tfps.ParameterServerStrategy:
    """The strategy of the test's `placement`."""
    return strategies[placement]
