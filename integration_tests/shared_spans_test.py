"""Tests of the check that spans leave nothing behind, on this process."""

import threading

import pytest
import shared_spans
import tensorflow as tf

from tfps_plugin.variables.updates.remote_queues import RemoteQueues


@pytest.mark.parametrize("number", range(3))
def test_an_element_of_any_queue_is_found(number: int) -> None:
    earlier = shared_spans.queues()
    # It has another name if an earlier test of this process had a cluster.
    device = tf.constant(0).device
    queues = RemoteQueues(device, "test", 3, [tf.int64])
    shared_spans.assert_nothing_is_left(earlier)
    queues.put_now(number, [1])
    with pytest.raises(AssertionError):
        shared_spans.assert_nothing_is_left(earlier)
    queues.close()
    queues.renew()
    shared_spans.assert_nothing_is_left(earlier)


@pytest.mark.parametrize("name", ["tfps-span", "tfps-applier-1"])
def test_a_thread_that_runs_is_found(name: str) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name=name)
    thread.start()
    try:
        with pytest.raises(AssertionError):
            shared_spans.assert_nothing_is_left([])
    finally:
        end.set()
        thread.join()
