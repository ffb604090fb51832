"""Tests of results that are still on workers."""

from collections.abc import Collection

import pytest

from tfps_plugin import errors
from tfps_plugin.coordinator.closures.kept_results import KeptResults


class _Result:
    def __init__(
        self, error: Exception | None = None, workers: Collection[int] = (0,)
    ) -> None:
        self.num_brought = 0
        self._error = error
        self._workers = workers

    def is_on(self, worker_index: int) -> bool:
        return worker_index in self._workers

    def bring_home(self) -> None:
        self.num_brought += 1
        if self._error is not None:
            raise self._error


def test_those_of_the_worker_and_of_several_are_brought() -> None:
    kept = KeptResults()
    own, other, shared, forgotten = (_Result() for _ in range(4))
    for worker, result in ((0, own), (1, other), (None, shared)):
        kept.add(worker, result)
    kept.add(0, forgotten)
    del forgotten
    elsewhere = _Result(workers=[1, 2])
    kept.add(None, elsewhere)
    kept.bring_home(0)
    assert [each.num_brought for each in (own, other, shared)] == [1, 0, 1]
    assert elsewhere.num_brought == 0
    kept.bring_home(2)
    assert [each.num_brought for each in (own, other, shared)] == [1, 0, 1]
    assert elsewhere.num_brought == 1


def test_a_worker_that_has_died_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = KeptResults()
    results = [_Result(errors.WorkerLostError("gone")) for _ in range(2)]
    for result in results:
        kept.add(0, result)
    kept.bring_home(0)
    assert "gone" in caplog.text
    assert sum(each.num_brought for each in results) == 1, "none can be"


def test_those_of_several_are_brought_though_one_has_died() -> None:
    kept = KeptResults()
    results = [_Result(errors.WorkerLostError("gone")) for _ in range(2)]
    results += [_Result(), _Result()]
    for result in results:
        kept.add(None, result)
    kept.bring_home(0)
    assert [each.num_brought for each in results] == [1] * 4


def test_a_result_that_cannot_be_fetched_keeps_no_other_from_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = KeptResults()
    results = [_Result(errors.PlacementError("on the chief")) for _ in range(3)]
    for result in results:
        kept.add(0, result)
    kept.bring_home(0)
    assert [each.num_brought for each in results] == [1] * 3
    assert "on the chief" in caplog.text


def test_results_of_a_lost_worker_are_not_waited_for_once_it_is_back() -> None:
    kept = KeptResults()
    lost, later = _Result(errors.WorkerLostError("gone")), _Result()
    kept.add(0, lost)
    kept.forget(0)
    kept.add(0, later)
    kept.bring_home(0)
    assert [lost.num_brought, later.num_brought] == [0, 1]
