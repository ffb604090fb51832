"""Tests of the description of the cluster for TensorFlow."""

from tfps_plugin.cluster.chief.server_def import make_server_def
from tfps_plugin.cluster.spec import ClusterSpec

_CLUSTER = ClusterSpec(("a:1", "b:1", "c:1"), ("d:1",))


def test_the_chief_is_this_process_at_its_true_address() -> None:
    server_def = make_server_def(
        "10.0.0.1:7", _CLUSTER.serving_tasks, is_first=True
    )
    assert (server_def.job_name, server_def.task_index) == ("chief", 0)
    jobs = {job.name: dict(job.tasks) for job in server_def.cluster.job}
    assert jobs == {
        "chief": {0: "10.0.0.1:7"},
        "worker": {0: "a:1", 1: "b:1", 2: "c:1"},
        "ps": {0: "d:1"},
    }


def test_a_task_that_is_taken_out_leaves_the_others_their_numbers() -> None:
    first, _, third = _CLUSTER.workers
    server_def = make_server_def("x:1", [first, third], is_first=False)
    jobs = {job.name: dict(job.tasks) for job in server_def.cluster.job}
    assert jobs == {"chief": {0: "x:1"}, "worker": {0: "a:1", 2: "c:1"}}


def test_ps_do_not_see_each_other_not_even_later_ones() -> None:
    server_def = make_server_def("x:1", _CLUSTER.serving_tasks, is_first=True)
    filters = {
        job.name: job.tasks for job in server_def.cluster_device_filters.jobs
    }
    for index in (0, 2, 100):
        visible = list(filters["worker"][index].device_filters)
        assert visible == ["/job:ps", "/job:chief", "/job:worker"]
        visible = list(filters["ps"][index].device_filters)
        assert visible == ["/job:worker", "/job:chief"]


def test_filters_are_only_given_once() -> None:
    server_def = make_server_def("x:1", _CLUSTER.serving_tasks, is_first=False)
    assert not server_def.cluster_device_filters.jobs


def test_threads_of_tasks_do_not_spin_while_they_wait() -> None:
    server_def = make_server_def("x:1", (), is_first=False)
    config = server_def.default_session_config
    assert config.experimental.disable_thread_spinning
