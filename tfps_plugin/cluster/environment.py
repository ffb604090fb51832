"""All environment settings that we make for TensorFlow and gRPC.

Users need not set any. A value that the user has set is kept; if it breaks a
promise, a warning says which.
"""

import logging
import os
from collections.abc import Iterable
from collections.abc import Mapping

_logger = logging.getLogger("tfps_plugin.cluster")

# Name -> our value, and the problem with any other value. All of them are read
# with the first connection or later, so they can still be set after TensorFlow
# was imported.
_SETTINGS: dict[str, tuple[str, str]] = {
    # The default lets a call to a dead task wait until the task is back.
    "GRPC_FAIL_FAST": (
        "use_caller",
        "a call to a dead task may hang",
    ),
    # One remote call per executor at a time. With streams a failed call also
    # poisons the calls after it, and failures are blamed on the wrong call.
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
    # connections open and is silent. gRPC pings while data flow, and closes a
    # connection without an answer within `ping_timeout_ms`: every call on it
    # then fails. With `keepalive_time_ms` it also pings if no data flow while a
    # call waits. At most every 300 s, because a server closes a connection that
    # pings more often (grpc.http2.min_ping_interval_without_data_ms, for which
    # TensorFlow's servers have no setting). `min_reconnect_backoff_ms` limits
    # the time of an attempt to connect again.
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
    """Returns a copy of the environment `base` with our settings.

    Args:
        base: The environment to start from. Its values are kept.
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
    """Returns the settings for which `base` has another value than ours.

    Returns:
        The name of each such setting, and the problem with its value.
    """
    return {
        name: consequence
        for name, (value, consequence) in _SETTINGS.items()
        if base.get(name, value) != value
    }


def apply_chief_environment(hosts: Iterable[str] = ()) -> None:
    """Applies our settings to this process.

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
