"""The strategies of the suite."""

import os
import pathlib
from collections.abc import Iterator

import pytest

import tfps_plugin as tfps

from . import placements

_HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leaves out two of three cells.

    A feature then still meets kinds of input and placements, but not all of
    them. `TFPS_SURFACE=1` asks for every cell, another number for one of so
    many.
    """
    share = int(os.environ.get("TFPS_SURFACE", "3"))
    left_out = [
        item
        for item in items
        if _HERE in item.path.parents and _is_left_out(item, share)
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_left_out(item: pytest.Item, share: int) -> bool:
    callspec = getattr(item, "callspec", None)
    if callspec is None or "input_kind" not in callspec.params:
        return False
    numbers = callspec.indices
    return bool(
        sum(numbers[name] for name in ("feature", "input_kind", "placement"))
        % share
    )


@pytest.fixture(scope="module")
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
