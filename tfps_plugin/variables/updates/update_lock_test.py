import contextlib
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.updates.update_lock import UpdateLock
from tfps_plugin.variables.updates.update_lock import UpdateLocks

_THREADS = 4
_CALLS = 50
# A longer wait counts as a deadlock.
_PATIENCE_SECONDS = 20


def _lock(name: str) -> UpdateLock:
    return UpdateLock(testing.LOCAL_DEVICE, f"update_lock_test/{name}")


def _in_threads(
    call: Callable[[], object], threads: int = _THREADS, calls: int = _CALLS
) -> None:
    def run() -> None:
        for _ in range(calls):
            call()

    with futures.ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(run) for _ in range(threads)]:
            done.result(_PATIENCE_SECONDS)


def _increment(variable: RemoteVariable, delta: tf.Tensor) -> None:
    # Do not use tf.Variable.assign_add, which is one operation.
    variable.assign(tf.sqrt(tf.square(variable.read_value())) + delta)


class _Meeting:
    """Makes two calls meet between their reads and their assignments."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=_PATIENCE_SECONDS)

    def pass_through(self, value: tf.Tensor) -> tf.Tensor:
        def wait(array: np.ndarray) -> np.ndarray:
            self.barrier.wait()
            return array

        met = tf.numpy_function(wait, [value], value.dtype, stateful=True)
        met.set_shape(value.shape)
        return met


class _Occupancy:
    """Counts the calls that are at one place at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self.most = 0

    def pass_through(self, value: tf.Tensor) -> tf.Tensor:
        def enter(array: np.ndarray) -> np.ndarray:
            with self._lock:
                self._inside += 1
                self.most = max(self.most, self._inside)
            return array

        def leave(array: np.ndarray) -> np.ndarray:
            with self._lock:
                self._inside -= 1
            return array

        for step in (enter, leave):
            value = tf.numpy_function(step, [value], value.dtype)
        value.set_shape([])
        return value


def test_nothing_is_lost_under_the_lock() -> None:
    variable = testing.remote_variable(tf.zeros([1000]))
    lock = _lock("nothing_is_lost")

    @tf.function
    def add(delta: tf.Tensor) -> None:
        arrived = tf.identity(delta)
        with lock.holding(after=[arrived]):
            _increment(variable, arrived)

    one = tf.ones([1000])
    add(one)
    _in_threads(lambda: add(one))
    np.testing.assert_array_equal(variable.numpy(), 1 + _THREADS * _CALLS)


def test_without_it_an_update_is_lost() -> None:
    variable = testing.remote_variable(0.0)
    meeting = _Meeting()

    @tf.function
    def add() -> None:
        variable.assign(meeting.pass_through(variable.read_value()) + 1.0)

    add.get_concrete_function()
    _in_threads(add, threads=2, calls=1)
    assert variable.numpy() == 1.0


def test_one_section_at_a_time() -> None:
    variable = testing.remote_variable(0.0)
    lock = _lock("one_at_a_time")
    occupancy = _Occupancy()

    @tf.function
    def add() -> None:
        with lock.holding():
            value = occupancy.pass_through(variable.read_value())
            variable.assign(value + 1.0)

    add.get_concrete_function()
    _in_threads(add)
    assert variable.numpy() == _THREADS * _CALLS
    assert occupancy.most == 1


def test_a_variable_first_used_in_a_section_is_guarded_too() -> None:
    """Its handle is captured in the section; inputs wait for nothing."""
    variable = testing.remote_variable(0.0)

    @tf.function
    def add() -> None:
        with _lock("first_used").holding():
            variable.assign(tf.sqrt(variable.read_value()))

    operations = add.get_concrete_function().graph.get_operations()
    (read,) = (o for o in operations if o.type == "ReadVariableOp")
    assert [o.type for o in read.control_inputs] == ["MutexLock"]
    handle = read.inputs[0].op
    assert not handle.control_inputs


def test_a_section_in_a_section_takes_the_lock_once() -> None:
    variable = testing.remote_variable(0.0)
    lock = _lock("nested")

    @tf.function
    def add() -> None:
        with lock.holding():
            _increment(variable, tf.constant(1.0))
            with lock.holding():
                _increment(variable, tf.constant(10.0))
            assert StepTrace.current().holds_a_lock
        assert not StepTrace.current().holds_a_lock

    types = [o.type for o in add.get_concrete_function().graph.get_operations()]
    assert types.count("MutexLock") == 1
    _in_threads(add)
    assert variable.numpy() == 11 * _THREADS * _CALLS


def test_in_a_loop_in_a_branch_and_around_them() -> None:
    variable = testing.remote_variable(0.0)
    lock = _lock("loop")

    def add_one() -> None:
        with lock.holding():
            _increment(variable, tf.constant(1.0))

    @tf.function(autograph=False)
    def add(count: tf.Tensor) -> None:
        def body(i: tf.Tensor) -> tuple[tf.Tensor]:
            add_one()
            return (i + 1,)

        tf.while_loop(lambda i: i < count, body, [0], parallel_iterations=1)
        tf.cond(count > 1, add_one, lambda: None)
        with lock.holding():
            tf.while_loop(lambda i: i < count, body, [0], parallel_iterations=1)
            tf.cond(count > 1, add_one, lambda: None)

    three = tf.constant(3)
    add(three)
    assert variable.numpy() == 8
    _in_threads(lambda: add(three))
    assert variable.numpy() == 8 + 8 * _THREADS * _CALLS


def test_a_section_that_raises_gives_the_lock_back() -> None:
    variable = testing.remote_variable(0.0)
    lock = _lock("raises")

    @tf.function
    def add(good: tf.Tensor) -> None:
        with lock.holding():
            read = variable.read_value()
            check = tf.debugging.Assert(good, ["bad"])
            with tf.control_dependencies([check]):
                variable.assign(read + 1.0)

    def add_either() -> None:
        with contextlib.suppress(tf.errors.InvalidArgumentError):
            add(tf.constant(False))
        add(tf.constant(True))

    with pytest.raises(tf.errors.InvalidArgumentError):
        add(tf.constant(False))
    _in_threads(add_either)
    assert variable.numpy() == _THREADS * _CALLS


def test_a_section_that_cannot_be_traced_leaves_the_thread_free() -> None:
    lock = _lock("traced")

    @tf.function(autograph=False)
    def broken() -> None:
        with lock.holding():
            raise KeyError("tracing")

    with pytest.raises(KeyError):
        broken()
    assert not StepTrace.current().holds_a_lock


def test_sections_of_one_function_with_reads_between() -> None:
    variable = testing.remote_variable(0.0)
    other = testing.remote_variable(0.0)
    lock = _lock("between")

    @tf.function
    def add() -> tuple[tf.Tensor, tf.Tensor]:
        before = variable.read_value()
        with lock.holding():
            _increment(variable, tf.constant(1.0))
        between = variable.read_value()
        other.assign_add(1.0)
        with lock.holding(after=[between]):
            _increment(variable, between * 0 + 1.0)
            _increment(other, tf.constant(0.0))
        return before, between

    before, between = add()
    assert (before.numpy(), between.numpy()) == (0, 1)
    _in_threads(add)
    assert variable.numpy() == 2 + 2 * _THREADS * _CALLS


def test_locks_taken_in_different_orders() -> None:
    """One section computes an input of a section of another lock.

    If the second section acquired its lock at once, and then waited for the
    first, two functions with opposite orders would wait for each other.
    """
    variables = [testing.remote_variable(0.0) for _ in range(2)]
    locks = [_lock("first"), _lock("second")]

    def make(order: tuple[int, int]) -> Any:
        first, second = order

        @tf.function
        def add() -> None:
            with locks[first].holding():
                _increment(variables[first], tf.constant(1.0))
            one = variables[first].read_value() * 0.0 + 1.0
            # `one` is not passed in `after`.
            with locks[second].holding():
                _increment(variables[second], one)

        return add

    forward, backward = make((0, 1)), make((1, 0))
    graph = forward.get_concrete_function().graph
    lock = [o for o in graph.get_operations() if o.type == "MutexLock"][1]
    assert "AddV2" in {o.type for o in lock.control_inputs}

    def both() -> None:
        with futures.ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(forward), pool.submit(backward)]:
                done.result(_PATIENCE_SECONDS)

    forward()
    backward()
    _in_threads(both, calls=10)
    for variable in variables:
        assert variable.numpy() == 2 + 2 * _THREADS * 10


def test_the_lock_waits_for_earlier_uses_of_the_variables() -> None:
    variable = testing.remote_variable(1.0)
    lock = _lock("uses")

    @tf.function
    def add() -> tf.Tensor:
        read = variable.read_value()
        with lock.holding():
            variable.assign(5.0)
        return read

    (taken,) = [
        o
        for o in add.get_concrete_function().graph.get_operations()
        if o.type == "MutexLock"
    ]
    assert "ReadVariableOp" in {o.type for o in taken.control_inputs}
    assert add().numpy() == 1.0


@pytest.mark.parametrize("traced_before", [False, True])
def test_a_function_that_would_wait_for_itself_is_refused(
    traced_before: bool,
) -> None:
    variable = testing.remote_variable(0.0)
    lock = _lock("itself")

    @tf.function
    def inner() -> None:
        with lock.holding():
            _increment(variable, tf.constant(1.0))

    if traced_before:
        inner()

    @tf.function
    def outer() -> None:
        with lock.holding():
            inner()

    with pytest.raises(errors.UnsupportedError, match="under the same lock"):
        outer()
    assert not StepTrace.current().holds_a_lock


def test_eagerly_it_does_nothing() -> None:
    with _lock("eager").holding():
        assert not StepTrace.current().holds_a_lock


def test_small_variables_share_a_lock_and_large_ones_take_turns() -> None:
    locks = UpdateLocks()
    small = [locks.for_variable("/ps:0", 4) for _ in range(3)]
    large = [locks.for_variable("/ps:0", 1 << 20) for _ in range(20)]
    other = locks.for_variable("/ps:1", 4)
    assert len({id(lock) for lock in small}) == 1
    assert len({id(lock) for lock in large}) == 16
    assert small[0] not in large
    assert other is not small[0]
