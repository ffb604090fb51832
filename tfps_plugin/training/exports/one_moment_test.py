"""Tests of values that are taken between two restores."""

import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.cluster.chief import connection
from tfps_plugin.recovery.failover import Failover
from tfps_plugin.training.exports import one_moment
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.chief.recovery_gate import RecoveryGate

_LOST = tf.errors.UnavailableError(None, None, "a ps is lost")


class _Strategy:
    """A strategy of a parameter server that holds nothing."""

    def __init__(self) -> None:
        self.values_lock = threading.RLock()
        self.session = self.inventory = self
        self.fails = False

    def on(self, devices: list[str]) -> list[Any]:
        return devices

    def remake(self, devices: list[str]) -> None:
        if self.fails:
            raise _LOST


@pytest.fixture
def strategy() -> _Strategy:
    return _Strategy()


@pytest.fixture
def failover(strategy: _Strategy) -> Failover:
    return Failover(strategy, consistent=True)


class _Values:
    """Values that are restored during the first reads."""

    def __init__(self, restores: list[Callable[[], Any]]) -> None:
        self._restores = restores
        self.num_reads = 0

    def read(self) -> int:
        self.num_reads += 1
        if self._restores:
            self._restores.pop(0)()
        return self.num_reads


@pytest.fixture
def gate() -> Iterator[list[Callable[[], bool]]]:
    """Functions that the chief waits in while a parameter server is lost."""
    waited: list[Callable[[], bool]] = []

    def wait() -> bool:
        return waited.pop(0)() if waited else False

    unregister = connection.present().part(RecoveryGate).register(wait)
    yield waited
    unregister()


def test_values_are_taken_once_if_nothing_is_restored(
    failover: Failover,
) -> None:
    failover.restore([])
    assert one_moment.take([failover], _Values([]).read) == 1
    assert one_moment.take([], _Values([]).read) == 1


def test_values_are_taken_anew_after_a_restore(failover: Failover) -> None:
    def fails() -> None:
        failover.restore([])
        raise _LOST

    values = _Values([lambda: failover.restore([]), fails])
    assert one_moment.take([failover], values.read) == 3


def test_a_restore_that_failed_is_waited_for(
    failover: Failover,
    strategy: _Strategy,
    gate: list[Callable[[], bool]],
) -> None:
    strategy.fails = True
    with pytest.raises(tf.errors.UnavailableError):
        failover.restore([])
    strategy.fails = False
    values = _Values([])

    def restore() -> bool:
        assert values.num_reads == 0
        failover.restore([])
        return True

    gate.append(restore)
    assert one_moment.take([failover], values.read) == 1


def test_restores_without_end_are_an_error_of_the_cluster(
    failover: Failover,
) -> None:
    values = _Values([lambda: failover.restore([])] * 20)
    with pytest.raises(tf.errors.UnavailableError, match="again and") as caught:
        one_moment.take([failover], values.read)
    # So callbacks log it, and the training goes on.
    assert chief_reads.is_about_the_cluster(caught.value)
    assert values.num_reads == 5


def test_errors_that_no_restore_has_caused_are_raised(
    failover: Failover,
) -> None:
    def fail() -> None:
        raise _LOST

    values = _Values([fail])
    with pytest.raises(tf.errors.UnavailableError, match="a ps is lost"):
        one_moment.take([failover], values.read)
    assert values.num_reads == 1
