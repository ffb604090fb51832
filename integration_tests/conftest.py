"""Fixtures, order and samples of integration tests."""

import gc
import logging
import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import sampling
import shared_cluster
import shared_training
from shared_cluster import SharedCluster
from shared_gate import Gate

import tfps_plugin as tfps
from tfps_plugin.conftest import nothing_left_behind as nothing_left_behind
from tfps_plugin.conftest import pytest_addoption as pytest_addoption
from tfps_plugin.conftest import scratch_folder as scratch_folder
from tfps_plugin.training.steps.tuning import packing

_HERE = pathlib.Path(__file__).parent

# Real processes: each imports TensorFlow, for some seconds, on few cores.
_TIMEOUT_SECONDS = 300
_LOG_CHARACTERS = 6000
# A sample ends in twenty minutes on two slow cores. It has a share of the
# files, unless files are named, and of each of them a share of the tests.
_SHARE_OF_FILES = 0.3
_SHARE = 0.06


def pytest_report_header(config: pytest.Config) -> str:
    """Returns a header that tells how to run the same tests again."""
    if config.getoption("all"):
        return "integration tests: all (--all)"
    seed = config.getoption("sample_seed")
    return f"integration tests: a sample, --sample-seed {seed}; all with --all"


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Marks, samples and orders the tests of this folder; sets timeouts.

    They come after all others: a process that has been a cluster's chief keeps
    the device names of that cluster, and unit tests use those of a single
    process. Tests that share a cluster run one after another; see
    `shared_cluster.py`.
    """
    left_out = _left_out(config, items)
    config.hook.pytest_deselected(items=left_out)
    without = {id(item) for item in left_out}
    items[:] = [item for item in items if id(item) not in without]
    ours = [item for item in items if _HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.integration)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TIMEOUT_SECONDS))
    ours.sort(key=lambda item: shared_cluster.shape_of(item) or ())
    others = [item for item in items if _HERE not in item.path.parents]
    items[:] = [*others, *ours]


def _left_out(
    config: pytest.Config, items: list[pytest.Item]
) -> list[pytest.Item]:
    """Returns the tests that are not in the sample.

    Tests marked `gpu` are in every one: most machines skip them, and say why.
    """
    if config.getoption("all"):
        return []
    are_named = any(".py" in each for each in config.args)
    places = sampling.left_out(
        [_listed(item) for item in items],
        config.getoption("sample_seed"),
        share_of_files=1.0 if are_named else _SHARE_OF_FILES,
        share_of_tests=_SHARE,
    )
    return [items[place] for place in sorted(places)]


def _listed(item: pytest.Item) -> sampling.Listed:
    marker = item.get_closest_marker("sample")
    given = {} if marker is None else marker.kwargs
    is_ours = _HERE in item.path.parents
    return sampling.Listed(
        file=item.path.relative_to(_HERE).as_posix() if is_ours else None,
        group=given.get("group") or item.nodeid.partition("[")[0],
        cases=given.get("cases"),
        is_always=item.get_closest_marker("gpu") is not None,
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Adds the logs of dead tasks to the report of a failure."""
    report: Any = yield
    if report.failed:
        report.sections += [
            (f"Log of {title}", log[-_LOG_CHARACTERS:])
            for cluster in _living_clusters()
            for title, log in _dead_tasks(cluster)
        ]
    return report


@pytest.fixture
def loggers_stay_as_they_are() -> Iterator[None]:
    """Checks that a test leaves the levels of the loggers as they were."""
    before = _levels()
    yield
    assert _levels() == before


def _levels() -> dict[str, int]:
    named = logging.Logger.manager.loggerDict
    loggers = [logging.root, logging.getLogger("tfps_plugin")] + [
        logging.getLogger(name)
        for name in named
        if name.startswith("tfps_plugin.")
    ]
    return {each.name: each.level for each in loggers if each.level}


@pytest.fixture(autouse=True)
def steps_are_fused(
    loggers_stay_as_they_are: None, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """Checks that no rewriting of a step fails."""
    yield
    failures = [
        record.getMessage()
        for when in ("setup", "call")
        for record in caplog.get_records(when)
        if record.name == "tfps_plugin.transport"
        and record.levelno >= logging.WARNING
    ]
    assert not failures


@pytest.fixture(autouse=True)
def calls_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits calls to ten steps, the limit before steps are measured.

    Tests rely on it to bound what a lost worker leaves behind. Programs that
    tests start, such as the examples, choose the number by measurements.
    """
    few = [n for n in packing._NUMBERS if n <= shared_training.STEPS_A_CALL]
    monkeypatch.setattr(packing, "_NUMBERS", tuple(few))


def _living_clusters() -> list[tfps.LocalCluster]:
    return [o for o in gc.get_objects() if isinstance(o, tfps.LocalCluster)]


def _dead_tasks(cluster: tfps.LocalCluster) -> Iterator[tuple[str, str]]:
    for task in cluster.cluster_spec.serving_tasks:
        returncode = cluster.process(task.job, task.index).poll()
        if returncode is not None:
            title = f"{task}, which ended with {returncode}"
            yield title, cluster.log(task.job, task.index)


@pytest.fixture(scope="session")
def _shared_cluster() -> Iterator[SharedCluster]:
    shared = SharedCluster()
    yield shared
    shared.stop()


@pytest.fixture(scope="module")
def cluster(
    _shared_cluster: SharedCluster, request: pytest.FixtureRequest
) -> tfps.LocalCluster:
    """Returns the shared cluster of the kind that the module is marked with.

    `pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)`
    """
    shape = shared_cluster.shape_of(request.node)
    assert shape is not None, "The module has no pytest.mark.cluster."
    return _shared_cluster.of(*shape)


@pytest.fixture
def make(cluster: tfps.LocalCluster) -> Iterator[Callable[..., Any]]:
    """Yields a maker of strategies on the shared cluster."""
    made = []

    def make(num_shards: int = 2, **options: Any) -> Any:
        made.append(
            tfps.ParameterServerStrategy(
                cluster.cluster_resolver,
                tfps.partitioners.FixedShardsPartitioner(num_shards),
                **options,
            )
        )
        return made[-1]

    yield make
    for strategy in made:
        tfps.ClusterCoordinator(strategy).close()


@pytest.fixture
def gate(tmp_path: pathlib.Path) -> Iterator[Gate]:
    """Yields a closed gate, at which a test holds up one step."""
    folder = tmp_path / "gate"
    folder.mkdir()
    gate = Gate(folder)
    yield gate
    gate.close()
