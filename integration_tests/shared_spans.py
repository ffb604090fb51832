"""Checks that spans of synchronous steps have left nothing behind."""

import gc
import threading

import tensorflow as tf

from tfps_plugin.variables.updates.remote_queues import RemoteQueues

_THREADS = ("tfps-span", "tfps-applier-", "tfps-norms", "tfps-referee")
# A thread of a custom loop tells who waits for its calls before it ends.
_CALLS, _CALLS_SECONDS = "tfps-group-calls", 10.0


def threads() -> list[str]:
    """Returns the names of the threads that make synchronous steps."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(_THREADS)]


def queues() -> list[RemoteQueues]:
    """Returns all queues on parameter servers."""
    return [o for o in gc.get_objects() if type(o) is RemoteQueues]


def assert_nothing_is_left(earlier: list[RemoteQueues]) -> None:
    """Checks that no span runs, and that no queue holds anything.

    Args:
        earlier: Queues of other tests, whose ps may be gone.
    """
    assert not threads()
    for thread in threading.enumerate():
        if thread.name.startswith(_CALLS):
            thread.join(_CALLS_SECONDS)
            assert not thread.is_alive()
    known = {id(each) for each in earlier}
    held = {}
    for each in queues():
        if id(each) in known or each._handles is None:
            continue
        with tf.device(each.device):
            sizes = [
                int(tf.raw_ops.QueueSizeV2(handle=handle))
                for handle in each._handles.each
            ]
        assert len(sizes) == each._number
        if any(sizes):
            held[each._kind, each.device] = sizes
    assert not held
