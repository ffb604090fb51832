"""Tests of sums that a step needs, with workers and a ps of this process."""

import concurrent.futures
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import patch_table
from tfps_plugin._compat import patches
from tfps_plugin.training.synchronous.sums import shared_sums
from tfps_plugin.training.synchronous.sums import sum_loops
from tfps_plugin.training.synchronous.sums.shared_sums import SharedSums
from tfps_plugin.training.synchronous.sums.sum_loops import SharedSum
from tfps_plugin.variables import testing

_SECONDS = 20.0
_WORKERS = 3
# Numbers of examples.
_EXAMPLES = [2.0, 3.0, 5.0]
_SUM, _MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


@pytest.fixture
def threads() -> Iterator[concurrent.futures.Executor]:
    patches.apply(patch_table.VARIABLES)
    with concurrent.futures.ThreadPoolExecutor(20) as threads:
        yield threads


def _adder(*sums: SharedSum) -> Callable[..., Any]:
    """Returns what a ps runs, a function of members and a number of steps."""

    def add_up(members: tf.Tensor, num_steps: tf.Tensor) -> tf.Tensor:
        ended = sum_loops.add_up(sums, members, num_steps)
        with tf.control_dependencies([ended]):
            return tf.constant(0)

    return tf.function(add_up, autograph=False).get_concrete_function(
        tf.TensorSpec([_WORKERS], tf.bool), tf.TensorSpec([], tf.int64)
    )


def _on_workers(
    threads: concurrent.futures.Executor,
    step: Callable[[SharedSums, Any, tf.Tensor], Sequence[tf.Tensor]],
    values: np.ndarray,
) -> list[list[np.ndarray]]:
    """Makes one step on each worker.

    Args:
        threads: Run workers and ps.
        step: A function of the sums, what is known of a worker, and its value.
        values: The value of each worker.

    Returns:
        The results of each worker.
    """
    sums = SharedSums([testing.LOCAL_DEVICE], _WORKERS)

    def trace(worker: tf.Tensor, value: tf.Tensor) -> Sequence[tf.Tensor]:
        def member() -> tuple[tf.Tensor, tf.Tensor]:
            return worker, tf.gather(_EXAMPLES, worker)

        return step(sums, member, value)

    function = tf.function(trace, autograph=False).get_concrete_function(
        tf.TensorSpec([], tf.int32), tf.TensorSpec(values.shape[1:])
    )
    all_members = tf.fill([_WORKERS], True)
    ended = [
        threads.submit(_adder(*group), all_members, tf.constant(1, tf.int64))
        for group in sums.groups_on(0)
    ]
    made = [
        threads.submit(function, tf.constant(worker), tf.constant(value))
        for worker, value in enumerate(values)
    ]
    try:
        return [
            [result.numpy() for result in each.result(_SECONDS)]
            for each in made
        ]
    finally:
        sums.close(0)
        for each in ended:
            each.exception(_SECONDS)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16])
@pytest.mark.parametrize("operation", [_SUM, _MEAN])
def test_gradients_are_those_of_the_mean_over_all_examples(
    threads: concurrent.futures.Executor, operation: Any, dtype: tf.DType
) -> None:
    """Also second ones; workers have different numbers of examples."""
    values = np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 4.0]], "float32")
    weights = np.array(_EXAMPLES) / np.sum(_EXAMPLES)

    def loss(value: Any, reduced: Any) -> Any:
        """Loss of one worker, whose weighed sum is the loss of all."""
        return tf.reduce_sum(tf.square(reduced) * value)

    def step(sums: SharedSums, member: Any, value: tf.Tensor) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(value)
            with tf.GradientTape() as inner:
                inner.watch(value)
                (reduced,) = sums.all_reduce(
                    operation, [tf.cast(value, dtype)], member
                )
                mine = loss(value, tf.cast(reduced, tf.float32))
            first = inner.gradient(mine, value)
            penalty = tf.reduce_sum(tf.square(first))
        return mine, first, outer.gradient(penalty, value)

    found = _on_workers(threads, step, values)

    def gradient_of_mean(losses: Callable[[Any], Any], at: tf.Tensor) -> Any:
        """Returns what workers have to have, by what one process has."""
        with tf.GradientTape() as tape:
            tape.watch(at)
            mean = tf.reduce_sum(losses(at) * tf.constant(weights, tf.float32))
        return tape.gradient(mean, at) / tf.constant(
            weights[:, None], tf.float32
        )

    def losses(at: tf.Tensor) -> tf.Tensor:
        total = tf.reduce_sum(at, axis=0)
        reduced = total if operation == _SUM else total / _WORKERS
        return tf.stack([loss(each, reduced) for each in tf.unstack(at)])

    def penalties(at: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.square(gradient_of_mean(losses, at)), axis=1)

    tolerance = 1e-5 if dtype == tf.float32 else 2e-2
    at = tf.constant(values)
    expected = [
        losses(at),
        gradient_of_mean(losses, at),
        gradient_of_mean(penalties, at),
    ]
    for worker in range(_WORKERS):
        for ours, theirs in zip(found[worker], expected, strict=True):
            np.testing.assert_allclose(ours, theirs[worker], rtol=tolerance)


def test_integers_have_sums_and_no_gradients(
    threads: concurrent.futures.Executor,
) -> None:
    def step(sums: SharedSums, member: Any, value: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(value)
            count, total = sums.all_reduce(
                _SUM, [tf.constant(2), value], member
            )
        return count, tape.gradient(total, value)

    for count, gradient in _on_workers(threads, step, np.ones([3, 2], "f")):
        assert count == 2 * _WORKERS
        assert gradient.shape == (2,)


def test_each_gradient_is_a_sum_of_its_own(
    threads: concurrent.futures.Executor,
) -> None:
    def step(sums: SharedSums, member: Any, value: tf.Tensor) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(value)
            (total,) = sums.all_reduce(_SUM, [value], member)
        tape.gradient(total, value)
        return (tape.gradient(total, value),)

    found = _on_workers(threads, step, np.ones([3, 2], "f"))
    np.testing.assert_allclose(
        [each[0][0] for each in found],
        [sum(_EXAMPLES) / each for each in _EXAMPLES],
        rtol=1e-6,
    )


def test_gradients_may_be_of_some_rows_only(
    threads: concurrent.futures.Executor,
) -> None:
    """As those of `tf.gather`, whose gradient is no tensor."""

    def step(sums: SharedSums, member: Any, value: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(value)
            (total,) = sums.all_reduce(_SUM, [value], member)
            row = tf.gather(total, [1])
        return (tape.gradient(row, value),)

    found = _on_workers(threads, step, np.ones([3, 2], "f"))
    np.testing.assert_allclose(
        [each[0] for each in found],
        [[0.0, sum(_EXAMPLES) / each] for each in _EXAMPLES],
        rtol=1e-6,
    )


def _devices(step: Callable[[Callable[..., Any]], None]) -> list[list[int]]:
    """Returns how many values each sum has, by ps."""
    sums = SharedSums(["/job:ps/task:0", "/job:ps/task:1"], _WORKERS)

    def all_reduce(*values: tf.Tensor) -> list[tf.Tensor]:
        return sums.all_reduce(
            _SUM, values, lambda: (tf.constant(0), tf.ones([]))
        )

    tf.function(
        lambda: step(all_reduce), autograph=False
    ).get_concrete_function()
    return [[len(each._specs) for each in sums.on(ps)] for ps in range(2)]


def test_sums_that_need_others_are_on_the_next_ps() -> None:
    def step(all_reduce: Callable[..., Any]) -> None:
        (first,) = all_reduce(tf.ones([]))
        all_reduce(tf.ones([]), tf.ones([2]))
        (third,) = all_reduce(first + 1.0)
        all_reduce(first, first, first)
        all_reduce(third * 2.0)

    assert _devices(step) == [[1, 2, 1], [1, 3]]


@pytest.mark.parametrize(
    ("value", "operation", "message"),
    [
        (tf.TensorSpec([None], tf.float32), _SUM, "known shapes"),
        (tf.TensorSpec([], tf.string), _SUM, "numbers"),
        (tf.TensorSpec([], tf.bool), _SUM, "numbers"),
        (tf.TensorSpec([], tf.int32), _MEAN, "no integers"),
        (tf.RaggedTensorSpec([None, None]), _SUM, "known shapes"),
    ],
)
def test_what_cannot_be_added_up_is_refused(
    value: Any, operation: Any, message: str
) -> None:
    sums = SharedSums([testing.LOCAL_DEVICE], _WORKERS)

    def step(value: Any) -> Any:
        return sums.all_reduce(
            operation, [value], lambda: (tf.constant(0), tf.ones([]))
        )

    with pytest.raises(errors.UnsupportedError, match=f"{message}.*Received"):
        tf.function(step, autograph=False).get_concrete_function(value)


@pytest.mark.parametrize("way", ["inputs", "control", "effect", "resource"])
def test_values_wait_for_operations_by_any_way(way: str) -> None:
    """Otherwise the ps would wait for parts that wait for the ps."""
    graph = tf.Graph()
    with graph.as_default():
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[])
        first, other = tf.ones([]), tf.zeros([])
        if way == "inputs":
            value = tf.sin(first) + tf.cos(other)
        elif way == "control":
            with tf.control_dependencies([first]):
                value = tf.ones([])
        elif way == "effect":
            tf.io.write_file("any", tf.strings.as_string(first))
            with tf.control_dependencies([tf.io.write_file("any", "text")]):
                value = tf.ones([])
        else:
            tf.raw_ops.AssignVariableOp(resource=handle, value=first)
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        operations = graph.get_operations()
    assert shared_sums._wait_for([other, value], {first.op}, operations)
    assert not shared_sums._wait_for([other], {first.op}, operations)
    assert not shared_sums._wait_for([value], set(), operations)
