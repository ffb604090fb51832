"""Tests of one sum over workers, with workers and a ps of this process."""

import concurrent.futures
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin._compat import patch_table
from tfps_plugin._compat import patches
from tfps_plugin.training.synchronous.sums import sum_loops
from tfps_plugin.training.synchronous.sums.sum_loops import SharedSum
from tfps_plugin.variables import testing

_SECONDS = 20.0
_WORKERS = 3
_SPECS = [tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32)]


@pytest.fixture
def threads() -> Iterator[concurrent.futures.Executor]:
    patches.apply(patch_table.VARIABLES)
    with concurrent.futures.ThreadPoolExecutor(20) as threads:
        yield threads


@pytest.fixture
def shared(threads: Any) -> Iterator[SharedSum]:
    """Yields a sum; ends what waits for it, if a test has failed."""
    del threads
    shared = SharedSum(testing.LOCAL_DEVICE, _WORKERS, _SPECS)
    yield shared
    shared.close()


def _adder(*sums: SharedSum) -> Callable[..., Any]:
    """Returns what a ps runs, a function of members and a number of steps."""

    def add_up(members: tf.Tensor, num_steps: tf.Tensor) -> tf.Tensor:
        ended = sum_loops.add_up(sums, members, num_steps)
        with tf.control_dependencies([ended]):
            return tf.constant(0)

    return tf.function(add_up, autograph=False).get_concrete_function(
        tf.TensorSpec([_WORKERS], tf.bool), tf.TensorSpec([], tf.int64)
    )


def _part(shared: SharedSum) -> Callable[..., Any]:
    """Returns what a worker runs, a function of its index and a value."""
    function = tf.function(
        lambda worker, value: shared.total(
            worker, tf.ones([]), [value, tf.cast(value[0], tf.int32)]
        ),
        autograph=False,
    )
    return function.get_concrete_function(
        tf.TensorSpec([], tf.int32), tf.TensorSpec([2])
    )


def _members(*workers: int) -> tf.Tensor:
    return tf.constant([worker in workers for worker in range(_WORKERS)])


def test_each_member_gets_the_sum_of_each_step(
    shared: SharedSum, threads: concurrent.futures.Executor
) -> None:
    add_up, part = _adder(shared), _part(shared)

    def make_steps(worker: int) -> list[tuple[int, list[float], int]]:
        made = []
        for step in range(4):
            number, (sums, count) = part(
                tf.constant(worker), tf.constant([step, 10.0 * worker])
            )
            made.append((int(number), sums.numpy().tolist(), int(count)))
        return made

    ended = threads.submit(add_up, _members(0, 2), tf.constant(4, tf.int64))
    made = [threads.submit(make_steps, worker) for worker in (0, 2)]
    for each in made:
        assert each.result(_SECONDS) == [
            (2, [2.0 * step, 20.0], 2 * step) for step in range(4)
        ]
    ended.result(_SECONDS)


@pytest.mark.parametrize("is_early", [True, False])
def test_steps_go_on_without_who_leaves(
    shared: SharedSum, threads: concurrent.futures.Executor, is_early: bool
) -> None:
    add_up, part = _adder(shared), _part(shared)
    if is_early:
        shared.leave(1)
    ended = threads.submit(add_up, _members(0, 1), tf.constant(3, tf.int64))
    last = threads.submit(part, tf.constant(0), tf.constant([1.0, 2.0]))
    if not is_early:
        shared.leave(1)
    number, (sums, _) = last.result(_SECONDS)
    assert (int(number), sums.numpy().tolist()) == (1, [1.0, 2.0])
    # The call ends when all have left, before its last step.
    assert not ended.done()
    shared.leave(0)
    ended.result(_SECONDS)


def test_closing_ends_all_that_waits(
    shared: SharedSum, threads: concurrent.futures.Executor
) -> None:
    add_up, part = _adder(shared), _part(shared)
    waiting = [
        threads.submit(add_up, _members(0, 1), tf.constant(3, tf.int64)),
        threads.submit(part, tf.constant(0), tf.constant([1.0, 2.0])),
    ]
    shared.close()
    for each in waiting:
        with pytest.raises(
            (tf.errors.CancelledError, tf.errors.OutOfRangeError)
        ):
            each.result(_SECONDS)
    # New queues have nothing of the old ones.
    shared.renew()
    ended = threads.submit(add_up, _members(2), tf.constant(1, tf.int64))
    number, _ = part(tf.constant(2), tf.constant([1.0, 2.0]))
    assert int(number) == 1
    ended.result(_SECONDS)


def test_who_leaves_with_some_parts_sent_is_in_no_sum(
    shared: SharedSum, threads: concurrent.futures.Executor
) -> None:
    """Else a sum of values and that of their numbers would not fit."""
    other = SharedSum(testing.LOCAL_DEVICE, _WORKERS, _SPECS)
    ended = threads.submit(
        _adder(shared, other), _members(0, 1), tf.constant(1, tf.int64)
    )
    # In one of the two.
    shared._parts.put_now(1, [1.0, [1.0, 2.0], 1])
    whole = [
        threads.submit(_part(each), tf.constant(0), tf.constant([1.0, 2.0]))
        for each in (shared, other)
    ]
    other.leave(1)
    shared.leave(1)
    for each in whole:
        number, (sums, count) = each.result(_SECONDS)
        assert int(number) == 1
        assert sums.numpy().tolist() == [1.0, 2.0]
        assert int(count) == 1
    ended.result(_SECONDS)
