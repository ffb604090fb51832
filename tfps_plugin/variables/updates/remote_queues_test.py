"""Tests of queues on a ps: functions find those of the present."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin._compat import patch_table
from tfps_plugin._compat import patches
from tfps_plugin.variables import testing
from tfps_plugin.variables.updates import remote_queues
from tfps_plugin.variables.updates.remote_queues import RemoteQueues

_SECONDS = 20


@pytest.fixture
def queues() -> RemoteQueues:
    patches.apply(patch_table.VARIABLES)
    return RemoteQueues(testing.LOCAL_DEVICE, "test", 3, [tf.int64, tf.float32])


def _taker(queues: RemoteQueues) -> Any:
    """Returns a function that takes an element of a queue."""

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
    def take(number: tf.Tensor) -> Any:
        return queues.take(number)

    return take.get_concrete_function()


def _putter(queues: RemoteQueues) -> Any:
    @tf.function(
        input_signature=[
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([], tf.int64),
        ]
    )
    def put(number: tf.Tensor, value: tf.Tensor) -> None:
        queues.put(number, [value, tf.cast(value, tf.float32) / 2])

    return put.get_concrete_function()


def _in_thread(function: Callable[[], Any]) -> Callable[[], Any]:
    """Starts a function; what is returned waits for its error."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(function())
        except tf.errors.OpError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(_SECONDS)
        assert not thread.is_alive()
        return results[0]

    return result


def test_elements_come_in_the_order_in_which_they_were_put(
    queues: RemoteQueues,
) -> None:
    put, take = _putter(queues), _taker(queues)
    for value in (3, 4, 5):
        put(tf.constant(1), tf.constant(value, tf.int64))
    taken = [take(tf.constant(1)) for _ in range(3)]
    assert [(int(a), float(b)) for a, b in taken] == [
        (3, 1.5),
        (4, 2.0),
        (5, 2.5),
    ]


def test_each_number_is_a_queue_of_its_own(queues: RemoteQueues) -> None:
    put, take = _putter(queues), _taker(queues)
    for number in (2, 0, 1):
        put(tf.constant(number), tf.constant(10 * number, tf.int64))
    found = [int(take(tf.constant(number))[0]) for number in range(3)]
    assert found == [0, 10, 20]


def test_the_chief_puts_an_element_without_a_function(
    queues: RemoteQueues,
) -> None:
    queues.put_now(2, [7, 0.25])
    number, value = _taker(queues)(tf.constant(2))
    assert (int(number), float(value)) == (7, 0.25)


def test_who_takes_waits_for_an_element(queues: RemoteQueues) -> None:
    take = _taker(queues)
    taken = _in_thread(lambda: int(take(tf.constant(0))[0]))
    queues.put_now(0, [5, 0.0])
    assert taken() == 5


def test_new_queues_are_empty_and_functions_find_them(
    queues: RemoteQueues,
) -> None:
    put, take = _putter(queues), _taker(queues)
    put(tf.constant(0), tf.constant(1, tf.int64))
    queues.renew()
    put(tf.constant(0), tf.constant(2, tf.int64))
    assert int(take(tf.constant(0))[0]) == 2


def test_who_waits_at_old_queues_gets_an_error(queues: RemoteQueues) -> None:
    """Closing ends a call that waits, and one that comes too late."""
    take = _taker(queues)
    handles = queues._handles_now().each
    waiting = _in_thread(lambda: take(tf.constant(0)))
    # Of the same queue, so it is behind the other call or in front of it.
    late = _in_thread(
        lambda: tf.raw_ops.QueueDequeueV2(
            handle=handles[0], component_types=[tf.int64, tf.float32]
        )
    )
    queues.close()
    assert isinstance(late(), tf.errors.OpError)
    # A call that finds the handles only now fails too.
    assert isinstance(waiting(), tf.errors.OpError)


def test_calls_of_closed_queues_fail(queues: RemoteQueues) -> None:
    """Also for an element that is there."""
    put, take = _putter(queues), _taker(queues)
    put(tf.constant(0), tf.constant(1, tf.int64))
    queues.close()
    for call in (
        lambda: take(tf.constant(0)),
        lambda: put(tf.constant(0), tf.constant(2, tf.int64)),
        lambda: queues.put_now(0, [2, 0.0]),
    ):
        with pytest.raises(tf.errors.CancelledError, match="are closed"):
            call()


def test_closed_queues_are_replaced_by_empty_ones(
    queues: RemoteQueues,
) -> None:
    put, take = _putter(queues), _taker(queues)
    put(tf.constant(0), tf.constant(1, tf.int64))
    queues.close()
    queues.renew()
    put(tf.constant(0), tf.constant(2, tf.int64))
    assert int(take(tf.constant(0))[0]) == 2


def test_queues_that_were_never_used_can_be_closed(
    queues: RemoteQueues,
) -> None:
    queues.close()
    take = _taker(queues)
    with pytest.raises(tf.errors.CancelledError, match="are closed"):
        take(tf.constant(0))
    assert queues._handles is None
    queues.renew()
    queues.put_now(0, [4, 0.0])
    assert int(take(tf.constant(0))[0]) == 4


@pytest.mark.parametrize(
    ("num_failures", "error", "num_calls"),
    [
        (0, tf.errors.UnavailableError, 1),
        (2, tf.errors.UnavailableError, 3),
        # Of a ps that is lost.
        (99, tf.errors.UnavailableError, remote_queues._ATTEMPTS),
        # The queue is gone, as it should be.
        (99, tf.errors.NotFoundError, 1),
    ],
)
def test_an_operation_that_fails_is_tried_again(
    queues: RemoteQueues, num_failures: int, error: Any, num_calls: int
) -> None:
    calls: list[tf.Tensor] = []

    def fail(handle: tf.Tensor) -> None:
        calls.append(handle)
        # Three queues, one after the other.
        if len(calls) <= 3 * num_failures:
            raise error(None, None, "another ps is lost")

    queues._on_each(queues._handles_now(), fail)
    assert len(calls) == 3 * num_calls


def test_renewing_what_was_never_used_makes_nothing(
    queues: RemoteQueues,
) -> None:
    queues.renew()
    assert queues._handles is None


def test_threads_that_come_together_find_the_same_queues(
    queues: RemoteQueues,
) -> None:
    meet = threading.Barrier(4)

    def handles() -> Any:
        meet.wait(_SECONDS)
        return queues._handles_now()

    found = [_in_thread(handles) for _ in range(4)]
    assert len({id(each()) for each in found}) == 1
