"""Tests of variables under `tf.device`: what names of devices mean."""

import logging

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_devices
from tfps_plugin._compat.runtime.tensorflow_devices import NamedDevice
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.strategy.placement import hand_placement
from tfps_plugin.strategy.placement.hand_placement import HandPlacement

_SERVERS = range(2)


def _named(*names: str | None) -> NamedDevice | None:
    with tf.device(names[0]):
        if names[1:]:
            return _named(*names[1:])
        return tensorflow_devices.named_device()


def _ps(*names: str | None) -> int | None:
    return hand_placement.ps_index(_named(*names), _SERVERS, "v")


@pytest.mark.parametrize(
    "name",
    [
        "/job:ps/task:1",
        "/job:ps/task:1/CPU:0",
        "/job:ps/task:1/cpu:*",
        "/job:ps/replica:0/task:1/device:CPU:0",
        tf.DeviceSpec(job="ps", task=1),
    ],
)
def test_a_ps_is_named_in_any_spelling(name: str) -> None:
    assert _ps(name) == 1


def test_names_that_are_nested_are_put_together() -> None:
    assert _ps("/job:ps/task:1", "/CPU:0") == 1
    assert _ps("/CPU:0", "/job:ps/task:1") == 1
    assert _ps("/job:ps/task:1", "/job:ps/task:0") == 0
    assert _ps("/job:ps/task:1", None) is None
    assert _ps("/job:ps/task:0", "/CPU:0") == 0


@pytest.mark.parametrize("name", [None, "/CPU:0", "/GPU:0", "/job:ps"])
def test_a_device_that_names_no_task_leaves_the_choice(name: str) -> None:
    assert _ps(name) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/job:ps/task:2", "the cluster has no parameter server 2"),
        ("/job:worker/task:0", "workers hold no variables"),
        ("/job:chief/task:0", "the chief holds no variables"),
        ("/job:master/task:0", "the chief holds no variables"),
        ("/job:trainer/task:0", "the cluster has no job 'trainer'"),
        ("/job:ps/task:1/GPU:0", "memory of their CPU, and not on GPU:0"),
        ("/job:ps/task:1/CPU:1", "memory of their CPU, and not on CPU:1"),
        ("/job:ps/replica:1/task:1", "tasks have no replica 1"),
        ("/task:1", "the cluster has no job"),
    ],
)
def test_a_device_that_holds_no_variables_is_refused(
    name: str, reason: str
) -> None:
    with pytest.raises(errors.VariableCreationError) as raised:
        _ps(name)
    text = str(raised.value)
    assert "The variable 'v' cannot be on the device" in text
    assert reason in text
    assert "'/job:ps/task:0' to '/job:ps/task:1'" in text
    assert name.removeprefix("/task:1") in text.partition("tf.device(")[2]


def test_inside_of_a_function_it_is_the_same() -> None:
    seen = []

    @tf.function
    def function() -> None:
        with tf.device("/job:ps/task:1"), tf.init_scope():
            seen.append(_ps("/CPU:0"))
        with tf.init_scope():
            seen.append(hand_placement.ps_index(None, _SERVERS, "v"))

    with tf.device(None):
        function.get_concrete_function()
    assert seen == [1, None]


def test_where_a_call_computes_no_variables_are() -> None:
    seen = []

    @tf.function
    def function() -> None:
        with tf.device("/job:worker/task:1"), tf.init_scope():
            device = tensorflow_devices.named_device()
            seen.append(hand_placement.ps_index(device, _SERVERS, "v"))

    with tf.device(None):
        function.get_concrete_function()
    assert seen == [None]


def test_the_device_of_a_lane_names_nothing() -> None:
    placement = HandPlacement(lambda: _SERVERS)
    lane = DispatchContext(1, 3, 0, "/job:worker/replica:0/task:1/device:CPU:0")
    with dispatch_context.dispatching(lane), tf.device(lane.device):
        device = tensorflow_devices.named_device()
        assert placement.ps_of("v", device) is None
        assert placement.ps_of("v", _named("/job:ps/task:1")) == 1
        with pytest.raises(errors.VariableCreationError, match="workers hold"):
            placement.ps_of("v", _named("/job:worker/task:0"))


def test_what_does_not_follow_the_device_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    placement = HandPlacement(lambda: _SERVERS)
    with caplog.at_level(logging.INFO):
        for name in ("a", "b"):
            placement.ps_of(name, _named("/GPU:0"))
            placement.tell_of_worker_local(1, name)
            placement.tell_of_worker_local(None, name)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert "tf.device('/device:GPU:0') names no task" in texts[0]
    assert "'a', under parameter server 1" in texts[1]


def test_each_variable_that_is_not_cut_is_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    placement = HandPlacement(lambda: _SERVERS)
    device = _named("/job:ps/task:1")
    for name in ("a/embeddings", "b/embeddings"):
        placement.tell_of_whole(name, device, 1, 3)
    with tensorflow_devices.keeping_whole():
        placement.tell_of_whole("c", _named("/job:ps/task:1"), 1, 3)
    placement.tell_of_whole("d", _named("/job:ps/task:1"), 1, 3)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    told = [message.split("'")[1] for message in caplog.messages]
    assert told == ["a/embeddings", "b/embeddings", "d"]
    assert "parameter server 1" in caplog.messages[0]
    assert "Expected 3 shards" in caplog.messages[0]
    assert "outside of tf.device" in caplog.messages[0]
