"""Tests that calls of functions end with the connection to the cluster."""

import threading
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin._compat import patch_table
from tfps_plugin._compat import patches
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.cluster.chief import connection

_TIMEOUT_SECONDS = 30.0


class _Cancellation(tensorflow_execution.Cancellation):
    """Records that a call has begun under it."""

    def __init__(self) -> None:
        self.is_used = threading.Event()
        super().__init__()

    def new_manager(self) -> Any:
        manager = super().new_manager()
        self.is_used.set()
        return manager


def test_a_call_of_the_chief_ends_with_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_present", connection._Present())
    patches.apply(patch_table.CONNECTION)
    begun = connection.begin()
    cancellation = begun.cancellation = _Cancellation()
    empty = tf.queue.FIFOQueue(1, [tf.int32], shapes=[[]])
    raised: list[BaseException] = []

    def call() -> None:
        try:
            tf.function(empty.dequeue)()
        except tf.errors.CancelledError as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert cancellation.is_used.wait(_TIMEOUT_SECONDS)
    begun.end("superseded by a newer strategy")
    thread.join(_TIMEOUT_SECONDS)
    assert not thread.is_alive()
    assert len(raised) == 1
    # Other calls can begin.
    double = tf.function(lambda x: 2 * x)
    assert int(double(tf.constant(3))) == 6


def test_a_call_that_fails_cancels_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_present", connection._Present())
    patches.apply(patch_table.CONNECTION)
    begun = connection.begin()
    begun.cancellation = tensorflow_execution.Cancellation()
    read = tf.function(lambda iterator: next(iterator))
    iterator = iter(tf.data.Dataset.range(1))
    assert int(read(iterator)) == 0
    # TensorFlow cancels the manager of this call.
    with pytest.raises(tf.errors.OutOfRangeError):
        read(iterator)
    double = tf.function(lambda x: 2 * x)
    assert int(double(tf.constant(3))) == 6


def test_a_call_that_ignores_its_cancellation_is_seen_until_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_present", connection._Present())
    patches.apply(patch_table.CONNECTION)
    begun = connection.begin()
    cancellation = begun.cancellation = tensorflow_execution.Cancellation()
    empty = tf.queue.FIFOQueue(1, [tf.int32], shapes=[[]])
    is_running, may_end = threading.Event(), threading.Event()
    raised: list[BaseException] = []

    def wait() -> None:
        is_running.set()
        assert may_end.wait(_TIMEOUT_SECONDS)

    @tf.function
    def run() -> Any:
        # Fails beside a part that nothing can cancel.
        with tf.control_dependencies([tf.numpy_function(wait, [], [])]):
            return empty.dequeue()

    def call() -> None:
        try:
            run()
        except tf.errors.CancelledError as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        assert is_running.wait(_TIMEOUT_SECONDS)
        assert not cancellation.ignored_by()
        cancellation.start()
        assert len(cancellation.ignored_by()) == 1
        assert cancellation.ignored_by() == cancellation.ignored_by()
    finally:
        may_end.set()
        thread.join(_TIMEOUT_SECONDS)
    assert not thread.is_alive()
    # The error's traceback still refers to the manager of the call.
    assert len(raised) == 1
    assert not cancellation.ignored_by()
