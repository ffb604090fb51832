"""Tests of calls that wait for other workers."""

import logging

import pytest

from tfps_plugin import errors
from tfps_plugin.coordinator.closures.closure_queue import ClosureQueue
from tfps_plugin.coordinator.closures.shared_ledger import SharedLedger
from tfps_plugin.coordinator.members.membership import Membership
from tfps_plugin.coordinator.members.pinned_workers import PinnedWorkers
from tfps_plugin.coordinator.members.pinned_workers import WorkerAwayError
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.monitoring.events import Events


@pytest.fixture
def membership() -> Membership:
    return Membership(
        FakeSession(num_workers=3),
        ClosureQueue(SharedLedger(capacity=10)).lanes,
        Counters(),
        Events(),
    )


def test_a_worker_that_is_away_is_waited_for_and_named_once(
    membership: Membership, caplog: pytest.LogCaptureFixture
) -> None:
    pinned = PinnedWorkers(membership, timeout_seconds=600.0)
    assert pinned.require([0, 1]) == {0: 0, 1: 0}
    membership.report_lost(1, 0, "it died")
    assert pinned.require([0, 2]) == {0: 0, 2: 0}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises(WorkerAwayError, match="1 is away: it died"):
                pinned.require([0, 1])
    told = [text for text in caplog.messages if "in part on worker 1" in text]
    assert len(told) == 1
    membership.admit(1)
    assert pinned.require([1]) == {1: 1}


def test_a_worker_that_was_lost_in_a_call_is_known(
    membership: Membership,
) -> None:
    pinned = PinnedWorkers(membership, timeout_seconds=600.0)
    generations = pinned.require([0, 1])
    assert pinned.are_lost(generations) == []
    membership.report_lost(1, 0, "it died")
    assert pinned.are_lost(generations) == [1]
    membership.admit(1)
    assert pinned.are_lost(generations) == [1], "the call knew the earlier one"
    assert pinned.are_lost({}) == []


def test_a_worker_that_stays_away_is_an_error(membership: Membership) -> None:
    pinned = PinnedWorkers(membership, timeout_seconds=0.0)
    membership.report_lost(2, 0, "it died")
    with pytest.raises(
        errors.WorkerLostError, match=r"has waited for worker 2.*it died"
    ):
        pinned.require([2])


def _remove(membership: Membership, worker: int) -> None:
    generation = membership.begin_to_leave(worker)
    assert generation is not None
    membership.leave(worker, generation, for_good=True)


def test_nobody_waits_for_a_worker_that_was_removed(
    membership: Membership,
) -> None:
    pinned = PinnedWorkers(membership, timeout_seconds=600.0)
    generations = pinned.require([0, 1])
    _remove(membership, 1)
    assert pinned.are_lost(generations) == [1]
    with pytest.raises(
        errors.PlacementError,
        match=r"on worker 1, .*\['/job:worker/task:0', '/job:worker/task:2'\]"
        r".*Received: tf.device\('/job:worker/task:1'\).*"
        r"add_worker\('worker-1:1'\)",
    ):
        pinned.require([0, 1])
    # Also one that was away already.
    membership.report_lost(2, 0, "it died")
    with pytest.raises(WorkerAwayError):
        pinned.require([2])
    membership.retire(2)
    with pytest.raises(errors.PlacementError, match="on worker 2"):
        pinned.require([2])
    assert pinned.require([0]) == {0: 0}
    # One that this coordinator has never known, likewise.
    with pytest.raises(errors.PlacementError, match="its address"):
        pinned.require([3])


def test_a_worker_that_is_kept_does_not_leave(membership: Membership) -> None:
    pinned = PinnedWorkers(membership, timeout_seconds=600.0)
    use = pinned.keep([0, 1])
    assert membership.begin_to_leave(1) == 0
    assert not membership.uses.wait_until_free(1, 0.0)
    with pytest.raises(WorkerAwayError, match="leaves"):
        pinned.keep([0, 1])
    also = pinned.keep([1], also_leaving=True)
    use.release()
    assert not membership.uses.wait_until_free(1, 0.0)
    also.release()
    assert membership.uses.wait_until_free(1, 0.0)
    membership.stay(1)
    pinned.keep([1]).release()
    assert membership.uses.wait_until_free(1, 0.0)


def test_a_worker_that_is_not_there_is_not_kept(membership: Membership) -> None:
    pinned = PinnedWorkers(membership, timeout_seconds=600.0)
    membership.report_lost(1, 0, "it died")
    with pytest.raises(WorkerAwayError):
        pinned.keep([0, 1])
    for worker in (0, 1):
        assert membership.uses.wait_until_free(worker, 0.0)
