"""Ways in which tests lose a task, and get it back."""

import signal

from shared_gate import Gate
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin.monitoring import events


class LostPs:
    """A ps that is killed, and comes back."""

    def __init__(
        self, cluster: tfps.LocalCluster, seen: Seen, lost: int
    ) -> None:
        """Takes a cluster that lives.

        Args:
            cluster: The cluster.
            seen: The events of its coordinator.
            lost: Index of the ps.
        """
        self._cluster = cluster
        self._seen = seen
        self._lost = lost

    def happen(self) -> None:
        """Loses the ps."""
        self._cluster.kill("ps", self._lost)
        self._cluster.start("ps", self._lost)

    def end(self) -> None:
        """Brings the process back, if nothing else has."""


class StoppedPs(LostPs):
    """A ps that hangs until it is given up, and then goes on."""

    def happen(self) -> None:
        self._seen.on_event = self._go_on
        self._signal(signal.SIGSTOP)

    def _go_on(self, event: events.Event) -> None:
        if isinstance(event, events.WaitingForParameterServer):
            self.end()

    def end(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        self._cluster.process("ps", self._lost).send_signal(number)


class LostWorker:
    """A worker that is killed where a gate holds it up, and comes back."""

    def __init__(
        self, cluster: tfps.LocalCluster, gate: Gate, lost: int
    ) -> None:
        """Takes a cluster that lives.

        Args:
            cluster: The cluster.
            gate: The gate.
            lost: Index of the worker.
        """
        self._cluster = cluster
        self._gate = gate
        self._lost = lost
        self._process = cluster.process("worker", lost)

    def happen(self) -> None:
        """Loses the worker."""
        self._cluster.kill("worker", self._lost)

    def end(self) -> None:
        """Brings the worker back; nothing is held up any more."""
        self._gate.open()
        self._cluster.start("worker", self._lost, wait=True)


class StoppedWorker(LostWorker):
    """A worker that hangs until it is given up, and then goes on."""

    def happen(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        # Its step goes on, with a parcel that nobody may take.
        self._gate.open()
