"""Tests of the tasks that a function names."""

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.coordinator import pinned_tasks

_TASKS = ClusterSpec(("a:1", "b:1"), ("c:1",), "d:1").tasks


def test_workers_are_found_among_all_devices() -> None:
    devices = (
        "/device:CPU:0",
        "/job:worker/task:1",
        "/job:worker/replica:0/task:1/device:GPU:0",
        "/job:ps/task:0",
        "/job:ps",
        "/job:chief/task:0",
    )
    assert pinned_tasks.workers_of(devices, _TASKS, "f") == {1}
    assert pinned_tasks.workers_of(devices[:1], _TASKS, "f") == set()


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("/job:worker/task:2", "there is no worker 2"),
        ("/job:ps/task:1/device:CPU:0", "there is no ps 1"),
        ("/job:trainer/task:0", "there is no job 'trainer'"),
        (
            "/job:master/task:0",
            "'master' is an old name of the chief, whose job is 'chief'",
        ),
        ("/job:worker", "it names no worker"),
        ("/job:worker/replica:1/task:0", "tasks have no replica 1"),
        ("/task:0", "task 0 is of no job"),
    ],
)
def test_a_task_that_the_cluster_does_not_have_is_refused(
    device: str, reason: str
) -> None:
    with pytest.raises(errors.PlacementError) as raised:
        pinned_tasks.workers_of([device], _TASKS, "my_step")
    text = str(raised.value)
    assert reason in text
    assert "The function 'my_step' places" in text
    assert (
        "cluster: '/job:chief/task:0', '/job:worker/task:0' to "
        "'/job:worker/task:1', '/job:ps/task:0'. Received"
    ) in text
    assert f"tf.device({device!r})" in text


def test_a_chief_without_an_address_is_not_named() -> None:
    tasks = ClusterSpec(("a:1",), ("c:1",)).tasks
    with pytest.raises(errors.PlacementError) as raised:
        pinned_tasks.workers_of(["/job:chief/task:0"], tasks, "f")
    assert "cluster: '/job:worker/task:0', '/job:ps/task:0'" in str(
        raised.value
    )
