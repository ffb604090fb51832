"""Tests of the workers that belong to a cluster."""

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster.chief.enrolment import Enrolment
from tfps_plugin.cluster.spec import ClusterSpec


def _enrolment() -> Enrolment:
    return Enrolment(ClusterSpec(("a:1", "b:1"), ("c:1",)))


def test_a_worker_gets_the_next_index_and_keeps_it() -> None:
    enrolment = _enrolment()
    first = enrolment.workers[0]
    assert enrolment.add("d:1").index == 2
    enrolment.remove(first)
    assert [task.index for task in enrolment.workers] == [1, 2]
    assert enrolment.is_removed(first)
    assert enrolment.add("e:1").index == 3
    assert enrolment.cluster.worker_addresses == ("a:1", "b:1", "d:1", "e:1")


def test_a_removed_worker_comes_back_with_its_index() -> None:
    enrolment = _enrolment()
    first = enrolment.workers[0]
    enrolment.remove(first)
    assert enrolment.add("a:1") == first
    assert not enrolment.is_removed(first)


@pytest.mark.parametrize("address", ["no port", "c:1", "x:0"])
def test_what_is_no_address_of_a_worker_is_refused(address: str) -> None:
    enrolment = _enrolment()
    with pytest.raises(errors.ClusterConfigurationError, match="Received"):
        enrolment.add(address)
    assert len(enrolment.workers) == 2


def test_there_are_no_more_than_tensorflow_was_told() -> None:
    enrolment = _enrolment()
    for number in range(254):
        enrolment.add(f"w{number}:1")
    with pytest.raises(errors.ClusterConfigurationError, match="256"):
        enrolment.add("last:1")
