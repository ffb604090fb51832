"""Strategies of the suite, and the sample of its cells."""

import pathlib
from collections.abc import Iterator

import pytest

import tfps_plugin as tfps

from . import paces
from . import placements
from . import selection

_HERE = pathlib.Path(__file__).parent
# One of this many cells of the table runs.
_SHARE = 20


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Deselects most cells, but no row of the table.

    Of the rows, the mark `sample` may then keep some.

    A row is a feature of a test function; its cells are kinds of input and
    placements. Each `--sample-seed` keeps different cells; `--all` keeps all.
    """
    if config.getoption("all"):
        return
    seed = config.getoption("sample_seed")
    left_out = {
        item
        for rows in _rows_by_file(items).values()
        for number, cells in enumerate(rows.values())
        for place, item in enumerate(cells)
        if place not in selection.kept_cells(number, len(cells), _SHARE, seed)
    }
    config.hook.pytest_deselected(
        items=[item for item in items if item in left_out]
    )
    items[:] = [item for item in items if item not in left_out]


def _rows_by_file(
    items: list[pytest.Item],
) -> dict[pathlib.Path, dict[tuple[str, ...], list[pytest.Item]]]:
    """Returns the cells of each row of each file.

    The sample of one file does not depend on which other files run.
    """
    files: dict[pathlib.Path, dict[tuple[str, ...], list[pytest.Item]]] = {}
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        # Tests without kinds of input are few, and never left out.
        if _HERE in item.path.parents and "input_kind" in parameters:
            row: tuple[str, ...] = (
                item.nodeid.partition("[")[0],
                parameters["feature"],
            )
            if item.path.stem == "inputs_test":
                # There, the kind of input is tested.
                row += (parameters["input_kind"],)
            files.setdefault(item.path, {}).setdefault(row, []).append(item)
    return files


@pytest.fixture(scope="module")
def strategies(
    cluster: tfps.LocalCluster,
) -> Iterator[dict[str, tfps.ParameterServerStrategy]]:
    """Yields a strategy for each placement of variables.

    With one worker, one step is in flight at a time, so that training on the
    cluster is as sequential as in one process.
    """
    in_flight = 1 if len(cluster.cluster_spec.workers) == 1 else 2
    strategies = {
        name: tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            partitioner,
            scheduling=tfps.SchedulingOptions(
                max_closures_in_flight_per_worker=in_flight
            ),
        )
        for name, partitioner in placements.PARTITIONERS.items()
    }
    # Made here, because their threads outlive the first test that uses them.
    coordinators = [tfps.ClusterCoordinator(s) for s in strategies.values()]
    yield strategies
    for coordinator in coordinators:
        coordinator.close()


@pytest.fixture
def strategy(
    strategies: dict[str, tfps.ParameterServerStrategy], placement: str
) -> tfps.ParameterServerStrategy:
    """Returns the strategy of the test's `placement`."""
    return strategies[placement]


@pytest.fixture(scope="module")
def paced(cluster: tfps.LocalCluster) -> Iterator[paces.Benches]:
    """Yields a model for each pace and placement."""
    yield from paces.benches(cluster)
