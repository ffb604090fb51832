"""Tests of spans with bounded staleness, on this process's own device."""

import functools
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import cast

import pytest
import tensorflow as tf

from tfps_plugin._compat import patch_table
from tfps_plugin._compat import patches
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.training.bounded.bounded_span import BoundedSpan
from tfps_plugin.training.bounded.gate import Gate
from tfps_plugin.training.bounded.keeper import Keeper
from tfps_plugin.training.bounded.member_calls import MemberCalls
from tfps_plugin.variables import testing

_SECONDS = 20.0
_WORKERS = 3
_NUM_PS = 2


class _Value:
    """The future result of a closure, which runs once somebody waits for it."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread
        self._callback: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def on_ended(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._thread.start()

    def end(self) -> None:
        with self._lock:
            callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class _Coordinator:
    """Runs each closure on a thread of its own."""

    def __init__(self) -> None:
        self.values: dict[int, _Value] = {}
        self.threads: list[threading.Thread] = []

    def schedule_on(self, worker: int, function: Callable[[], None]) -> _Value:
        def run() -> None:
            try:
                with testing.lane(worker):
                    function()
            except Exception as error:
                self.raised = error
            self.values[worker].end()

        thread = threading.Thread(target=run)
        self.threads.append(thread)
        self.values[worker] = _Value(thread)
        return self.values[worker]


class _Cluster:
    """A step with a gate on two parameter servers of this process."""

    def __init__(self) -> None:
        patches.apply(patch_table.VARIABLES)
        self.gate = Gate([testing.LOCAL_DEVICE] * _NUM_PS, _WORKERS)
        self.keepers = [Keeper(self.gate, ps) for ps in range(_NUM_PS)]
        self.coordinator = _Coordinator()

        @tf.function(autograph=False)
        def step(data: tf.Tensor) -> Any:
            return self.gate.traced(lambda batch: batch + 1, data)

        # A concrete function: threads must not trace.
        self.step = functools.partial(
            step.get_concrete_function(tf.TensorSpec([], tf.int32)),
            tf.constant(1),
        )

    def run(
        self,
        make: Callable[[int, int, MemberCalls], bool],
        *,
        num_steps: int,
        bound: int = 1,
        members: tuple[int, ...] = (0, 2),
        on_made: Callable[[BoundedSpan], None] = lambda span: None,
    ) -> BoundedSpan:
        """Runs a span to its end."""
        ended = threading.Event()
        span = BoundedSpan(
            cast(ClusterCoordinator, self.coordinator),
            self.gate,
            self.keepers,
            bound,
            members,
            num_steps,
            make,
            ended.set,
        )
        on_made(span)
        span.start()
        assert ended.wait(_SECONDS)
        for thread in self.coordinator.threads:
            thread.join(_SECONDS)
            assert not thread.is_alive()
        return span

    def sizes(self) -> list[int]:
        """Returns the numbers of elements in all queues."""
        return [
            int(tf.raw_ops.QueueSizeV2(handle=handle))
            for queues in (*self.gate.tokens, *self.gate.events)
            for handle in queues._handles_now().each
        ]


@pytest.fixture
def cluster() -> Iterator[_Cluster]:
    cluster = _Cluster()
    yield cluster
    assert not any(cluster.sizes())


def _made(
    cluster: _Cluster, worker: int, num_steps: int, calls: MemberCalls
) -> bool:
    """Makes steps, each by a call."""
    for _ in range(num_steps):
        assert calls.begins(worker, 1)
        cluster.step()
        calls.has_ended(worker, 1)
    return True


def test_members_make_their_shares(cluster: _Cluster) -> None:
    span = cluster.run(functools.partial(_made, cluster), num_steps=13)
    assert span.shares == {0: 7, 2: 6}
    assert (span.num_done, span.num_in_doubt, span.error) == (13, 0, None)
    assert [span.num_parts(worker) for worker in (0, 2)] == [7, 6]
    assert not span.left
    assert span.largest_staleness <= 1


def test_a_member_with_less_input_holds_nobody(cluster: _Cluster) -> None:
    def make(worker: int, num_steps: int, calls: MemberCalls) -> bool:
        if worker == 2:
            _made(cluster, worker, 1, calls)
            return False
        return _made(cluster, worker, num_steps, calls)

    span = cluster.run(make, num_steps=20, bound=0)
    assert (span.num_done, span.num_in_doubt, span.error) == (11, 0, None)
    assert span.left == {2}
    assert span.largest_staleness == 0


def test_a_step_of_a_member_that_fails_is_in_doubt(cluster: _Cluster) -> None:
    def make(worker: int, num_steps: int, calls: MemberCalls) -> bool:
        if worker == 0:
            assert calls.begins(worker, num_steps)
            cluster.step()
            raise ZeroDivisionError
        return _made(cluster, worker, num_steps, calls)

    span = cluster.run(make, num_steps=8)
    # The parameter servers know of the step, its call has told of none.
    assert (span.num_parts(0), span.num_parts(2)) == (1, 4)
    assert (span.num_done, span.num_in_doubt, span.error) == (5, 1, None)
    assert isinstance(span.member_errors[0], ZeroDivisionError)


def test_a_member_that_is_given_up_begins_no_call_later(
    cluster: _Cluster,
) -> None:
    has_gone = threading.Event()
    may_begin = []

    def make(worker: int, num_steps: int, calls: MemberCalls) -> bool:
        if worker == 2:
            # As when its worker hangs, and the coordinator gives it up.
            cluster.coordinator.values[worker].end()
            may_begin.append(calls.begins(worker, 1))
            has_gone.set()
            return False
        assert has_gone.wait(_SECONDS)
        return _made(cluster, worker, num_steps, calls)

    span = cluster.run(make, num_steps=8)
    assert may_begin == [False]
    assert span.left == {2}
    assert (span.num_done, span.num_in_doubt) == (4, 0)


def test_a_span_that_is_to_end_begins_no_call(cluster: _Cluster) -> None:
    spans: list[BoundedSpan] = []

    def make(worker: int, num_steps: int, calls: MemberCalls) -> bool:
        for _ in range(num_steps):
            if not calls.begins(worker, 1):
                return False
            cluster.step()
            calls.has_ended(worker, 1)
            spans[0].hurry()
        return True

    span = cluster.run(make, num_steps=200, on_made=spans.append)
    assert 1 <= span.num_done <= 3
    assert span.left == {0, 2}
    assert (span.num_in_doubt, span.error) == (0, None)


def test_calls_that_ended_count_if_a_ps_is_lost(cluster: _Cluster) -> None:
    def make(worker: int, num_steps: int, calls: MemberCalls) -> bool:
        if worker == 0:
            _made(cluster, worker, 2, calls)
            cluster.gate.close_queues(1)
        return _made(cluster, worker, num_steps, calls)

    span = cluster.run(make, num_steps=200, bound=1)
    assert isinstance(span.error, tf.errors.OpError)
    assert span.num_parts(0) == 2
    assert span.num_done == 2 + span.num_parts(2)
    # One call of each member.
    assert 1 <= span.num_in_doubt <= 2
    # The next span finds queues again.
    again = cluster.run(functools.partial(_made, cluster), num_steps=6)
    assert (again.num_done, again.error) == (6, None)
