"""Variables under `tf.device`: the parameter server that a device names.

`docs/model_parallelism.md` says what users can name.
"""

import logging
import threading
from collections.abc import Callable
from collections.abc import Sequence

from tfps_plugin import errors
from tfps_plugin._compat.runtime.tensorflow_devices import NamedDevice
from tfps_plugin.cluster import spec
from tfps_plugin.cluster.calls import dispatch_context

_logger = logging.getLogger("tfps_plugin.strategy")


class HandPlacement:
    """Variables that a program places by `tf.device`.

    Threading: any thread. Guarded by `_lock`: `_told`.
    """

    def __init__(self, servers: Callable[[], Sequence[int]]) -> None:
        """Begins without variables.

        Args:
            servers: Returns the indices of the parameter servers.
        """
        self._servers = servers
        self._lock = threading.Lock()
        # Texts that the log has, each once for all variables.
        self._told: set[str] = set()

    def ps_of(self, name: str, device: NamedDevice | None) -> int | None:
        """Returns the parameter server that the program names.

        Args:
            name: Name of the variable that is being created.
            device: The device that the program names for it; None: no device.

        Returns:
            Its index; None if the program leaves the choice to the strategy.

        Raises:
            VariableCreationError: If the device cannot hold variables.
        """
        if device is None or _is_of_lane(device):
            return None
        ps = ps_index(device, self._servers(), name)
        if device.job is None and device.kind != "CPU":
            self._tell_once(
                "tf.device(%r) names no task, so variables under it are in the "
                "memory of parameter servers, as others are; the first is %r. "
                "Workers compute on their accelerators without tf.device.",
                f"/device:{device.kind}:{device.number}",
                name,
            )
        return ps

    def tell_of_worker_local(self, ps: int | None, name: str) -> None:
        """Logs that a state stays with the workers.

        Args:
            ps: The parameter server that `tf.device` names for it, or None.
            name: Name of the state.
        """
        if ps is not None:
            self._tell_once(
                "Metrics, seed generators and per-worker variables under "
                "tf.device stay with the workers, which have copies of their "
                "own; the first is %r, under parameter server %d.",
                name,
                ps,
            )

    def tell_of_whole(
        self, name: str, device: NamedDevice | None, ps: int, num_shards: int
    ) -> None:
        """Warns that a variable stays whole that was meant to be cut.

        Args:
            name: Name of the variable.
            device: As for `ps_of`. Nobody is told of what `tfps.on_ps` keeps
                whole.
            ps: Result of `ps_of`.
            num_shards: Number of shards that the partitioner asks for.
        """
        if device is not None and device.keeps_whole:
            return
        _logger.warning(
            "The variable %r is whole on parameter server %d, which tf.device "
            "names. Expected %d shards, by variable_partitioner. To have it "
            "cut over the parameter servers, create it outside of tf.device; "
            "to keep it whole without this warning, let variable_partitioner "
            "return 1 for its shape.",
            name,
            ps,
            num_shards,
        )

    def _tell_once(self, text: str, *args: object) -> None:
        with self._lock:
            if text in self._told:
                return
            self._told.add(text)
        _logger.info(text, *args)


def _is_of_lane(device: NamedDevice) -> bool:
    """Returns whether the coordinator, and not the program, set a device."""
    lane = dispatch_context.current()
    return lane is not None and (device.job, device.task) == (
        spec.WORKER,
        lane.worker_index,
    )


def ps_index(
    device: NamedDevice | None, servers: Sequence[int], name: str
) -> int | None:
    """Returns the parameter server that a device names.

    Args:
        device: The device under which a variable is created; None: no device.
        servers: Indices of the parameter servers.
        name: Name of the variable, for messages.

    Returns:
        The index of the parameter server; None if the device names no task, or
        the job of the parameter servers without a task.

    Raises:
        VariableCreationError: If the device cannot hold variables.
    """
    if device is None or device.job is None:
        return None
    if device.job == spec.WORKER and device.in_function:
        # The layer is built by its first call, which computes there.
        return None
    reason = _why_unfit(device, servers)
    if reason is None:
        return device.task
    first, *others = (f"'/job:ps/task:{server}'" for server in servers)
    last = ""
    if others:
        is_range = len(servers) == servers[-1] - servers[0] + 1
        last = f" to {others[-1]}" if is_range else f" or {', '.join(others)}"
    raise errors.VariableCreationError(
        f"The variable {name!r} cannot be on the device under which it is "
        f"created: {reason}. Expected the device of a parameter server, "
        f"{first}{last}, or none: the variable is then on the "
        "parameter server with the fewest bytes. Received: "
        f"tf.device({device.given!r}). Name a parameter server, or create the "
        "variable outside of tf.device."
    )


def _why_unfit(device: NamedDevice, servers: Sequence[int]) -> str | None:
    """Returns why a device cannot hold variables; None if it can."""
    if device.job == spec.WORKER:
        return (
            "workers hold no variables, so that none is lost with a worker. "
            "To compute on a worker, use tf.device in the step or in the "
            "layer's call()"
        )
    if device.job in (spec.CHIEF, spec.OLD_NAME_OF_CHIEF):
        return "the chief holds no variables of the strategy"
    if device.job != spec.PARAMETER_SERVER:
        return f"the cluster has no job {device.job!r}"
    if device.replica:
        return f"tasks have no replica {device.replica}"
    if device.task is not None and device.task not in servers:
        return f"the cluster has no parameter server {device.task}"
    if (device.kind, device.number) != ("CPU", 0):
        return (
            "parameter servers hold variables in the memory of their CPU, and "
            f"not on {device.kind}:{device.number}"
        )
    return None
