"""Tests that settings are made, and that those of users are kept."""

import logging
import os

import pytest

from tfps_plugin.cluster import environment

_OURS = {
    "GRPC_FAIL_FAST": "use_caller",
    "TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE": "False",
    "TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY": "True",
    "TF_GRPC_DEFAULT_OPTIONS": (
        "grpc.http2.ping_timeout_ms=20000,grpc.keepalive_time_ms=305000,"
        "grpc.min_reconnect_backoff_ms=5000"
    ),
}


def test_a_task_gets_our_settings() -> None:
    base = {"PATH": "/bin"}
    assert environment.with_settings(base) == {"PATH": "/bin", **_OURS}
    assert base == {"PATH": "/bin"}


def test_what_the_user_has_set_is_kept() -> None:
    base = {"GRPC_FAIL_FAST": "false"}
    assert environment.with_settings(base)["GRPC_FAIL_FAST"] == "false"
    assert environment.kept_by_user(base) == {
        "GRPC_FAIL_FAST": "a call to a dead task may hang"
    }
    assert environment.kept_by_user(_OURS) == {}


def test_the_chief_sets_them_for_itself_and_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in _OURS:
        # Restores the old value after the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("GRPC_FAIL_FAST", "true")
    with caplog.at_level(logging.WARNING, "tfps_plugin.cluster"):
        environment.apply_chief_environment()
    assert os.environ["TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY"] == "True"
    assert os.environ["GRPC_FAIL_FAST"] == "true"
    assert "GRPC_FAIL_FAST=true is kept" in caplog.text


def test_without_a_proxy_nothing_is_exempted_from_one() -> None:
    assert "no_grpc_proxy" not in environment.with_settings({}, ["a"])


@pytest.mark.parametrize(
    ("exempt", "expected"),
    [
        ({}, "a,b"),
        ({"no_proxy": "x,a"}, "x,a,b"),
        ({"no_proxy": "x", "no_grpc_proxy": "y"}, "y,a,b"),
    ],
)
def test_the_cluster_is_reached_without_the_proxy(
    exempt: dict[str, str], expected: str
) -> None:
    base = {"http_proxy": "http://proxy:3128", **exempt}
    settings = environment.with_settings(base, ["b", "a", "b"])
    assert settings["no_grpc_proxy"] == expected
    again = environment.with_settings(settings, ["a", "b"])
    assert again["no_grpc_proxy"] == expected
