"""Tests of the calls of one span, without a cluster."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.training.steps.scheduled.span_calls import SpanCalls
from tfps_plugin.training.steps.scheduled.waiting_call import WaitingCall
from tfps_plugin.training.synchronous.backup.late_gradients import LateGradients


class _Span:
    """The calls of a span; each records its place, and asks a worker.

    Attributes:
        places: Places of the calls that were made.
        ask: Returns the result of the present worker's next call.
    """

    def __init__(self, num_steps: int, num_backup: int) -> None:
        self.places: list[int] = []
        self.ask: Callable[[], Any]
        self.calls = [self._call(place) for place in range(num_steps)]
        self.late = LateGradients(num_backup, Counters())
        self.made = SpanCalls(self.calls, self.late)

    def _call(self, place: int) -> WaitingCall:
        def call() -> Any:
            self.places.append(place)
            return self.ask()

        nobody: Any = None
        return WaitingCall(call, nobody, nobody, 0)

    def make(self, worker: int, returned: list[Any]) -> bool:
        """Makes calls of a worker, until a script ends."""
        left = iter(returned)
        self.places.clear()

        def ask() -> Any:
            one = next(left)
            if isinstance(one, Exception):
                raise one
            return one

        self.ask = ask
        is_complete = self.made.make(worker, len(self.calls))
        assert not list(left)
        return is_complete

    @property
    def results(self) -> list[dict[int, Any]]:
        return [each.results for each in self.calls]


def _numbered(*numbers: int) -> list[Any]:
    """Returns results of calls that tell the numbers of their steps."""
    return [(f"result {n}", np.zeros([n, 0])) for n in numbers]


def test_without_backup_workers_all_make_each_call() -> None:
    span = _Span(3, 0)
    assert span.make(1, ["d", "e", "f"])
    assert span.make(0, ["a", "b", "c"])
    assert span.places == [0, 1, 2]
    assert span.results == [{0: a, 1: d} for a, d in ("ad", "be", "cf")]


def test_a_result_is_one_of_the_step_whose_token_the_worker_had() -> None:
    span = _Span(5, 1)
    assert span.make(0, _numbered(0, 1, 2, 3, 4))
    assert span.make(2, _numbered(0, 3, 4))
    # Each time it makes the call of the first step that it may still make.
    assert span.places == [0, 1, 4]
    own = [f"result {n}" for n in range(5)]
    assert span.results == [
        {0: own[0], 2: own[0]},
        {0: own[1]},
        {0: own[2]},
        {0: own[3], 2: own[3]},
        {0: own[4], 2: own[4]},
    ]
    span.late.settle({0: 5, 2: 1}.__getitem__)
    assert span.late.num_dropped == 2


def test_a_step_after_the_last_was_in_vain() -> None:
    span = _Span(3, 1)
    assert span.make(1, _numbered(0, 3))
    assert span.results == [{1: "result 0"}, {}, {}]
    span.late.settle({1: 0}.__getitem__)
    assert span.late.num_dropped == 2


@pytest.mark.parametrize("num_backup", [0, 1])
def test_a_worker_whose_input_has_ended_leaves(num_backup: int) -> None:
    span = _Span(3, num_backup)
    end = tf.errors.OutOfRangeError(None, None, "end")
    first = _numbered(0) if num_backup else ["result 0"]
    assert not span.make(1, [*first, end])
    assert span.made.ended == {1: end}
    assert span.results == [{1: "result 0"}, {}, {}]
