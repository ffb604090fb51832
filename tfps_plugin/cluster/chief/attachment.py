"""Connects TensorFlow's runtime in this process to a cluster, as its chief."""

import contextlib
import logging
import os
import time
from collections.abc import Collection
from collections.abc import Iterator

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import patch_table
from tfps_plugin._compat import patches
from tfps_plugin._compat.runtime import tensorflow_cluster
from tfps_plugin._compat.runtime.tensorflow_earlier_state import EarlierState
from tfps_plugin.cluster.chief import this_process
from tfps_plugin.cluster.chief.server_def import make_server_def
from tfps_plugin.cluster.machine import ports
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task
from tfps_plugin.cluster.spec import join_address
from tfps_plugin.cluster.spec import split_address

_logger = logging.getLogger("tfps_plugin.cluster")

# It takes milliseconds once every task has answered.
_TIMEOUT_SECONDS = 60.0


def earlier_state(cluster: ClusterSpec) -> EarlierState | None:
    """Finds the state of this process that it would lose to a cluster.

    To be called before the process leaves the cluster that it is in.

    Args:
        cluster: The cluster that it is about to connect to.

    Returns:
        The state, for `attach`; None if the process's devices stay.
    """
    return EarlierState() if _makes_server(cluster) else None


def attach(
    cluster: ClusterSpec,
    tasks: Collection[Task],
    earlier: EarlierState | None = None,
) -> str:
    """Connects TensorFlow to tasks of a cluster, as its chief.

    Starts this process's own server the first time, or when the cluster asks
    for another port. TensorFlow then makes the devices of this process anew,
    and the state that this process had on them is made again there.

    Args:
        cluster: Has the chief's address if it is prescribed. If not, that is a
            free port of the address by which the tasks reach this machine.
        tasks: The workers and parameter servers to connect to, which must
            answer.
        earlier: From `earlier_state`; None: no state is kept.

    Returns:
        The chief's address.

    Raises:
        ClusterStartTimeoutError: If TensorFlow does not finish in time.
        TaskStartError: If the chief cannot serve at its address.

    Threading: one thread at a time.
    """
    process = this_process.state
    started = time.monotonic()
    patches.apply(patch_table.CONNECTION)
    with contextlib.ExitStack() as stack:
        address = cluster.chief_address
        if address is None:
            port = process.own_port
            if port is None:
                port = stack.enter_context(ports.reserved_port())
                stack.enter_context(_shared_ports())
            host = ports.own_host_towards(
                split_address(task.address) for task in tasks
            )
            address = join_address(host, port)
        port = split_address(address)[1]
        is_first = port != process.own_port
        if is_first and earlier is not None:
            earlier.read()
        server_def = make_server_def(address, tasks, is_first=is_first)
        attach = (
            tensorflow_cluster.set_server_def
            if is_first
            else tensorflow_cluster.update_server_def
        )
        try:
            process.changes.call(
                lambda: attach(server_def),
                _TIMEOUT_SECONDS,
                wait_seconds=_TIMEOUT_SECONDS,
            )
        except TimeoutError as error:
            raise errors.ClusterStartTimeoutError(
                "All tasks answer, but connecting to them did not end within "
                f"{time.monotonic() - started:.0f} s. Either one died "
                "meanwhile, or they cannot reach one another. Received: "
                f"cluster={cluster.with_chief(address).as_dict()!r}. (1) See "
                "their logs; (2) see that every task may connect to these "
                "addresses from its machine; (3) start the chief again."
            ) from error
        except tf.errors.UnknownError as error:
            raise _port_error(address, error.message) from error
        process.own_port = port
        if is_first and earlier is not None:
            _restore(earlier)
    return address


def check_own_port(cluster: ClusterSpec) -> None:
    """Checks that the chief can serve, before it waits for the tasks.

    Args:
        cluster: The cluster that `attach` will be given.

    Raises:
        TaskStartError: If the port that it prescribes is taken.
    """
    if cluster.chief_address is None:
        return
    port = split_address(cluster.chief_address)[1]
    if port == this_process.state.own_port:
        return
    reason = ports.why_unusable(port, os.environ)
    if reason is not None:
        raise _port_error(cluster.chief_address, reason)


def _port_error(address: str, reason: str) -> errors.TaskStartError:
    port = split_address(address)[1]
    return errors.TaskStartError(
        "The chief's own server cannot start. Expected a free port of this "
        f"machine. Received: cluster.chief[0]={address!r}: {reason}. End what "
        f"uses the port (`ss -ltnp 'sport = :{port}'` names it), or leave the "
        "chief's address out of the cluster: a free one is then taken."
    )


def _restore(earlier: EarlierState) -> None:
    lost = earlier.restore()
    if lost:
        _logger.warning(
            "Some objects that the program made before the strategy do not "
            "work anymore, and every use of them raises an error: iterators, "
            "queues, summary writers, and datasets whose functions use "
            "variables or tables, or run Python. Make them after the "
            "strategy. Received: %s",
            "; ".join(lost),
        )


def _makes_server(cluster: ClusterSpec) -> bool:
    """Returns whether connecting to a cluster starts another server here."""
    if cluster.chief_address is None:
        return this_process.state.own_port is None
    port = split_address(cluster.chief_address)[1]
    return port != this_process.state.own_port


@contextlib.contextmanager
def _shared_ports() -> Iterator[None]:
    """Lets TensorFlow's next server listen on a port reserved by us."""
    name = ports.REUSE_VARIABLE
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
