"""Tests of the workers that one run keeps."""

import pytest

from tfps_plugin.coordinator.closures.closure_queue import ClosureQueue
from tfps_plugin.coordinator.closures.shared_ledger import SharedLedger
from tfps_plugin.coordinator.members.kept_workers import KeptWorkers
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


def _kept(membership: Membership, *, is_bound: bool = False) -> KeptWorkers:
    return KeptWorkers(PinnedWorkers(membership, 600.0), is_bound=is_bound)


def _is_free(membership: Membership, worker: int) -> bool:
    return membership.uses.wait_until_free(worker, 0.0)


def test_a_run_that_has_begun_ends_with_the_same_workers(
    membership: Membership,
) -> None:
    kept = _kept(membership)
    assert kept.require([0, 1]) == {0: 0, 1: 0}
    membership.begin_to_leave(1)
    # Its second call: to begin the run anew would repeat the first.
    assert kept.require([1]) == {1: 0}
    assert kept.require([1, 2]) == {1: 0, 2: 0}
    with pytest.raises(WorkerAwayError):
        _kept(membership).require([1])
    assert not _is_free(membership, 1)
    kept.release()
    assert _is_free(membership, 0)
    assert _is_free(membership, 1)
    with pytest.raises(WorkerAwayError):
        kept.require([1])


def test_what_only_its_worker_may_run_does_not_wait(
    membership: Membership,
) -> None:
    membership.begin_to_leave(1)
    kept = _kept(membership, is_bound=True)
    assert kept.require([1]) == {1: 0}
    assert not _is_free(membership, 1)
    kept.release()
    assert _is_free(membership, 1)


def test_nothing_keeps_a_worker_whose_end_has_begun(
    membership: Membership,
) -> None:
    membership.begin_to_leave(1)
    kept = _kept(membership, is_bound=True)
    kept.require([1])
    assert not membership.let_nothing_keep(1)
    kept.release()
    assert membership.let_nothing_keep(1)
    with pytest.raises(WorkerAwayError):
        kept.require([1])
    assert _is_free(membership, 1)
    # It was not to be.
    membership.stay(1)
    assert kept.require([1]) == {1: 0}


def test_a_run_that_was_given_up_keeps_nobody(membership: Membership) -> None:
    kept = _kept(membership)
    kept.require([0])
    kept.give_up()
    assert _is_free(membership, 0)
    assert kept.require([1]) == {1: 0}
    assert _is_free(membership, 1)
