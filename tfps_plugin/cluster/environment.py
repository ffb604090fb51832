"""Every environment setting that we make for TensorFlow and gRPC.

Users are never asked for one. A value that the user has set is kept; if it
takes a promise away, a warning says which.
"""

import logging
import os
from collections.abc import Iterable
from collections.abc import Mapping

_logger = logging.getLogger("tfps_plugin.cluster")

# Name -> value and what goes wrong with another value. All of them are read
# when the first connection is made or later, so it is early enough to set them
# after TensorFlow has been imported.
_SETTINGS: dict[str, tuple[str, str]] = {
    # The default lets a call to a dead task wait until the task is back.
    "GRPC_FAIL_FAST": (
        "use_caller",
        "a call to a dead task may hang",
    ),
    # One remote call per executor at a time. With streams a failed call also
    # poisons the calls behind it, and failures are blamed on the wrong one.
    "TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE": (
        "False",
        "failures may be reported by the wrong call",
    ),
    # All our executors are synchronous. Without this, reading a value first
    # waits for every task of the cluster, including the dead ones.
    "TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY": (
        "True",
        "reading a value waits for all tasks",
    ),
    # A task that is stopped, or whose machine or network is gone, keeps its
    # connections open and says nothing. gRPC pings while data flow, and ends a
    # connection without an answer in `ping_timeout_ms`: every call on it then
    # fails. `keepalive_time_ms` has it ping where nothing flows but a call
    # waits. Not more often than every 300 s: a server ends a connection that
    # does (grpc.http2.min_ping_interval_without_data_ms, for which
    # TensorFlow's servers have no setting). `min_reconnect_backoff_ms` is how
    # long an attempt to connect again may take.
    "TF_GRPC_DEFAULT_OPTIONS": (
        "grpc.http2.ping_timeout_ms=20000,grpc.keepalive_time_ms=305000,"
        "grpc.min_reconnect_backoff_ms=5000",
        "a silent task may be waited for without end",
    ),
}
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


def with_settings(
    base: Mapping[str, str], hosts: Iterable[str] = ()
) -> dict[str, str]:
    """A copy of the environment `base` with our settings in it.

    Args:
        base: The environment to start from. What it sets is kept.
        hosts: The hosts of the cluster. If a web proxy is set, gRPC would
            send calls between tasks through it; these hosts are exempted.

    Returns:
        The new environment.
    """
    environment = dict(base)
    for name, (value, _) in _SETTINGS.items():
        environment.setdefault(name, value)
    hosts = sorted(set(hosts))
    if hosts and any(base.get(proxy) for proxy in _PROXIES):
        # gRPC reads `no_proxy` only where `no_grpc_proxy` is unset.
        exempt = base.get("no_grpc_proxy", base.get("no_proxy", ""))
        known = [host for host in exempt.split(",") if host]
        known += [host for host in hosts if host not in known]
        environment["no_grpc_proxy"] = ",".join(known)
    return environment


def kept_by_user(base: Mapping[str, str]) -> dict[str, str]:
    """The settings where `base` has another value than ours.

    Returns:
        Name of each such setting and what its value spoils.
    """
    return {
        name: consequence
        for name, (value, consequence) in _SETTINGS.items()
        if base.get(name, value) != value
    }


def apply_chief_environment(hosts: Iterable[str] = ()) -> None:
    """Makes our settings in this process.

    Call it before the first connection to a cluster. May be called again.

    Args:
        hosts: The hosts of the cluster, as in `with_settings`.
    """
    for name, consequence in kept_by_user(os.environ).items():
        _logger.warning(
            "The environment variable %s=%s is kept because it was set from "
            "outside, but with it %s. Unset it if you have no reason for it.",
            name,
            os.environ[name],
            consequence,
        )
    os.environ.update(with_settings(os.environ, hosts))


def task_environment(
    base: Mapping[str, str], hosts: Iterable[str] = ()
) -> dict[str, str]:
    """The environment for a task process that is started from here.

    Args:
        base: The environment to start from, usually `os.environ`.
        hosts: The hosts of the cluster, as in `with_settings`.

    Returns:
        A new environment; `base` is unchanged.
    """
    return with_settings(base, hosts)
