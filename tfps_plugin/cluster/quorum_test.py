"""Tests of the decision when a job starts."""

import pytest

from tfps_plugin.cluster.quorum import Quorum
from tfps_plugin.cluster.quorum import require_min_workers
from tfps_plugin.cluster.spec import Task

_PS = tuple(Task("ps", index, f"ps{index}:1") for index in range(2))
_WORKERS = tuple(Task("worker", index, f"w{index}:1") for index in range(3))
_ALL = (*_WORKERS, *_PS)


def test_everybody_is_waited_for_unless_told_otherwise() -> None:
    quorum = Quorum(_ALL, None)
    assert quorum.is_met(_ALL)
    for task in _ALL:
        assert not quorum.is_met(set(_ALL) - {task})


@pytest.mark.parametrize("min_workers", [1, 2, 3])
def test_some_workers_are_enough_whichever_they_are(min_workers: int) -> None:
    quorum = Quorum(_ALL, min_workers)
    for present in range(2 ** len(_WORKERS)):
        workers = [w for w in _WORKERS if present >> w.index & 1]
        expected = len(workers) >= min_workers
        assert quorum.is_met([*_PS, *workers]) == expected


def test_no_parameter_server_may_be_missing() -> None:
    quorum = Quorum(_ALL, 1)
    assert not quorum.is_met(_WORKERS)
    assert not quorum.is_met([*_WORKERS, _PS[1]])


def test_tasks_of_another_cluster_do_not_count() -> None:
    quorum = Quorum(_ALL, 1)
    assert not quorum.is_met([*_PS, Task("worker", 7, "elsewhere:1")])


def test_it_tells_what_is_waited_for() -> None:
    assert str(Quorum(_ALL, None)) == "every task"
    assert "at least 2 of the workers (min_workers=2)" in str(Quorum(_ALL, 2))


@pytest.mark.parametrize("good", [None, 1, 3])
def test_numbers_of_workers_that_there_are(good: int | None) -> None:
    require_min_workers(good, num_workers=3)


def test_more_workers_than_there_are_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"workers, here 3\. Received: min_workers=4"
    ):
        require_min_workers(4, num_workers=3)
