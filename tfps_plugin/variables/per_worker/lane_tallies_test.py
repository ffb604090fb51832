from typing import Any

import tensorflow as tf

from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.cluster.chief import connection
from tfps_plugin.variables import testing
from tfps_plugin.variables.per_worker.lane_tallies import LaneTallies
from tfps_plugin.variables.per_worker.worker_resident import Residents


class _Number:
    """A number and its tallies."""

    def __init__(self) -> None:
        self.value = tf.Variable(0, dtype=tf.int64)
        self.tallies = LaneTallies("number", tf.int64, self.value.read_value)

    def add(self, lane: int | None, value: int = 1) -> None:
        """Adds a value, as a lane or as the chief."""
        if lane is None:
            self._add(value)
            return
        context = DispatchContext(
            worker_index=lane,
            lane_index=lane,
            generation=1,
            device=testing.LOCAL_DEVICE,
        )
        with dispatch_context.dispatching(context):
            self._add(value)

    def _add(self, value: Any) -> None:
        handle = self.tallies.handle()
        delta = tf.constant(value, tf.int64)
        tf.raw_ops.AssignAddVariableOp(resource=handle, value=delta)
        self.value.assign_add(delta)


def test_nobody_has_added() -> None:
    assert _Number().tallies.total() is None


def test_it_is_exact_whoever_adds_and_whenever_they_begin() -> None:
    number = _Number()
    number.value.assign(100)
    for lane, value in [(0, 1), (0, 2), (1, 4), (0, 8), (None, 16), (1, 32)]:
        number.add(lane, value)
        assert number.tallies.total() == number.value.numpy()


def test_it_begins_anew() -> None:
    number = _Number()
    number.add(0)
    number.value.assign(1000)
    number.tallies.forget()
    assert number.tallies.total() is None
    number.add(0)
    assert number.tallies.total() == 1001


def test_what_a_lost_worker_has_added_is_not_known() -> None:
    number = _Number()
    number.add(0, 5)
    number.add(1, 7)
    connection.present().part(Residents).forget_worker(0)
    # The other lane began at 5, so the total is still exact.
    assert number.tallies.total() == 12
    number.add(0, 1)
    assert number.tallies.total() == 13
    connection.present().part(Residents).forget_worker(0)
    # An addition of the other lane is missing; the total is never too large.
    assert number.tallies.total() == 12 < number.value.numpy()


def test_what_a_worker_has_added_that_leaves_is_known() -> None:
    number = _Number()
    number.add(0, 5)
    number.add(1, 7)
    residents = connection.present().part(Residents)
    residents.release_worker(0)
    residents.forget_worker(0)
    assert number.tallies.total() == 12
    number.tallies.forget()
    assert number.tallies.total() is None
