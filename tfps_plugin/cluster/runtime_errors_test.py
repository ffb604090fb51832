import pytest

from tfps_plugin.cluster.runtime_errors import is_about_the_cluster


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        ("UnavailableError", ""),
        ("InternalError", "No worker known as /job:worker/task:0"),
        (
            "InternalError",
            "Remote address looked up from remote data found to be poisoned",
        ),
        ("CancelledError", "RecvFromRemoteAsync is cancelled."),
        ("CancelledError", "a part of the step on /job:ps/task:0 failed"),
        ("InvalidArgumentError", "/job:worker/task:1 unknown device."),
        ("InternalError", "{{function_node f}} Unable to parse request"),
        (
            "NotFoundError",
            "'__inference_read_7' is neither a type of a primitive operation "
            "nor a name of a function registered in binary running on host.\n"
            "Additional GRPC error information from remote target "
            "/job:worker/replica:0/task:1",
        ),
    ],
)
def test_what_the_runtime_says_of_tasks(type_name: str, text: str) -> None:
    assert is_about_the_cluster(type_name, text)


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        ("ValueError", "Socket closed"),
        ("InternalError", "out of memory"),
        ("CancelledError", "the user's own queue was closed"),
        ("InvalidArgumentError", "indices[0] = 7 is not in [0, 7)"),
        (
            "InvalidArgumentError",
            "no such row\nAdditional GRPC error information from remote "
            "target /job:worker/replica:0/task:0",
        ),
        (
            "NotFoundError",
            "'ReadOfMine' is neither a type of a primitive operation nor a "
            "name of a function registered in binary running on host.\n"
            "Additional GRPC error information from remote target "
            "/job:worker/replica:0/task:1",
        ),
        (
            "NotFoundError",
            "'__inference_read_7' is neither a type of a primitive operation "
            "nor a name of a function registered in binary running on host.",
        ),
    ],
)
def test_what_users_raise(type_name: str, text: str) -> None:
    assert not is_about_the_cluster(type_name, text)
