"""Tests of a gate and its keeper, on this process's own device."""

import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin._compat import patch_table
from tfps_plugin._compat import patches
from tfps_plugin.training.bounded.gate import Gate
from tfps_plugin.training.bounded.keeper import Keeper
from tfps_plugin.variables import testing
from tfps_plugin.variables.step_trace import StepTrace

_WORKERS = 3
_SECONDS = 20.0


@pytest.fixture
def gate() -> Iterator[Gate]:
    patches.apply(patch_table.VARIABLES)
    gate = Gate([testing.LOCAL_DEVICE], _WORKERS)
    yield gate
    gate.close_queues(0)
    gate.renew_queues(0)


class _Call:
    """A call of a keeper, on a thread."""

    def __init__(self, gate: Gate, shares: list[int], bound: int) -> None:
        keeper = Keeper(gate, 0)

        def run() -> None:
            try:
                self._result = keeper.function(
                    tf.constant(shares, tf.int64), tf.constant(bound, tf.int64)
                )
            except tf.errors.OpError as error:
                self.error: Exception | None = error

        self.error = None
        self._thread = threading.Thread(target=run)
        self._thread.start()

    def end(self) -> None:
        self._thread.join(_SECONDS)
        assert not self._thread.is_alive()

    def result(self) -> tuple[list[int], int]:
        """Returns clocks, and the largest lead."""
        self.end()
        assert self.error is None
        made, largest = self._result
        return made.numpy().tolist(), int(largest)


def _step(gate: Gate) -> Callable[[int], None]:
    """Returns a function that makes a step of a worker."""

    @tf.function(autograph=False)
    def step(data: tf.Tensor) -> Any:
        return gate.traced(lambda batch: batch + 1, data)

    # Not with the first call, which may wait.
    concrete = step.get_concrete_function(tf.TensorSpec([], tf.int32))

    def run(worker: int) -> None:
        with testing.lane(worker):
            assert int(concrete(tf.constant(1))) == 2

    return run


def _num_tokens(gate: Gate, worker: int) -> int:
    return int(
        tf.raw_ops.QueueSizeV2(
            handle=gate.tokens[0]._handles_now().each[worker]
        )
    )


def test_members_make_their_steps_in_turns(gate: Gate) -> None:
    step = _step(gate)
    call = _Call(gate, [2, 0, 1], bound=0)
    for worker in (0, 2, 0):
        step(worker)
    assert call.result() == ([2, 0, 1], 0)
    assert [_num_tokens(gate, worker) for worker in range(_WORKERS)] == [0] * 3


def test_a_fast_worker_waits_at_the_bound(gate: Gate) -> None:
    step = _step(gate)
    call = _Call(gate, [9, 9, 0], bound=2)
    for _ in range(3):
        step(0)
    waits = threading.Thread(target=step, args=(0,))
    waits.start()
    # The slow worker takes its token, and so tells that nothing is on its way.
    step(1)
    waits.join(_SECONDS)
    assert not waits.is_alive()
    # Again at the bound: the queue stays empty.
    assert _num_tokens(gate, 0) == 0
    for worker in (0, 1):
        gate.leave(worker, 0)
    assert call.result() == ([4, 1, 0], 2)


def test_who_leaves_holds_nobody(gate: Gate) -> None:
    step = _step(gate)
    call = _Call(gate, [5, 5, 0], bound=1)
    gate.leave(1, 0)
    # It does no harm to repeat it.
    gate.leave(1, 0)
    for _ in range(5):
        step(0)
    made, largest = call.result()
    assert made == [5, 0, 0]
    assert largest <= 1


def test_closed_queues_end_all_calls(gate: Gate) -> None:
    step = _step(gate)
    call = _Call(gate, [5, 5, 0], bound=0)
    step(0)
    gate.close_queues(0)
    call.end()
    assert isinstance(call.error, tf.errors.OpError)
    with pytest.raises(tf.errors.OpError):
        step(0)


def test_new_queues_know_nothing_of_the_old_ones(gate: Gate) -> None:
    step = _step(gate)
    call = _Call(gate, [5, 5, 0], bound=0)
    step(0)
    gate.close_queues(0)
    call.end()
    gate.renew_queues(0)
    call = _Call(gate, [1, 1, 0], bound=0)
    step(1)
    step(0)
    assert call.result() == ([1, 1, 0], 0)


def test_uses_wait_for_the_token_and_the_event_waits_for_them(
    gate: Gate,
) -> None:
    variable = testing.remote_variable(np.array([2.0, 3.0], "float32"))

    def train(batch: tf.Tensor) -> tf.Tensor:
        variable.assign_add(batch)
        return tf.reduce_sum(variable.read_value())

    @tf.function(autograph=False)
    def step(data: tf.Tensor) -> Any:
        return gate.traced(train, data)

    graph = step.get_concrete_function(tf.TensorSpec([2], tf.float32)).graph
    operations = graph.get_operations()
    (take,) = [o for o in operations if o.type == "QueueDequeueV2"]
    (put,) = [o for o in operations if o.type == "QueueEnqueueV2"]
    uses = [o for o in operations if o.type.endswith("VariableOp")]
    assert len(uses) >= 2
    for use in uses:
        assert take in use.control_inputs
        assert use in put.control_inputs
    # Neither is known to anything else.
    for operation in operations:
        for given in operation.inputs:
            assert given.op is not take


def test_a_step_says_that_it_waits_while_it_is_traced(gate: Gate) -> None:
    seen = []

    @tf.function(autograph=False)
    def step(data: tf.Tensor) -> Any:
        before = StepTrace.current().is_gated

        def train(batch: tf.Tensor) -> tf.Tensor:
            seen.append((before, StepTrace.current().is_gated))
            return batch

        return gate.traced(train, data)

    trace = step.get_concrete_function(tf.TensorSpec([], tf.float32)).graph
    assert seen == [(False, True)]
    assert not StepTrace.of_graph(trace).is_gated
