"""Place where the chief waits while lost parameter servers are restored.

Variables know nothing of the coordinator, which knows which tasks live. It
registers here, and the chief's reads ask here when a task does not answer.
"""

import threading
from collections.abc import Callable

from tfps_plugin import errors

# Looks for lost ps and waits until they are back. Returns whether to try again.
# Raises ParameterServerLostError if one cannot come back.
Gate = Callable[[], bool]


class RecoveryGate:
    """The coordinators of one connection that reads of the chief wait for.

    It is a part of the connection, and not of a strategy: strategies for one
    cluster share its parameter servers, and a ps that dies dies for all.

    Guarded by `_lock`: the gates.
    Never call while holding the lock: a gate.
    """

    def __init__(self) -> None:
        """Begins without any coordinator."""
        self._lock = threading.Lock()
        self._gates: list[Gate] = []

    def register(self, gate: Gate) -> Callable[[], None]:
        """Lets `wait` ask a coordinator.

        Args:
            gate: Called on the thread that waits.

        Returns:
            A function that undoes this; may be called again.
        """
        with self._lock:
            self._gates.append(gate)

        def unregister() -> None:
            with self._lock:
                if gate in self._gates:
                    self._gates.remove(gate)

        return unregister

    def wait(self) -> bool:
        """Waits until lost parameter servers are back.

        Returns:
            Whether some were lost and are back, so that a failed read may be
            tried again.

        Raises:
            ParameterServerLostError: If one is lost that cannot come back, and
                none came back.
        """
        with self._lock:
            gates = list(self._gates)
        # Ask all: nobody knows whose variable could not be read.
        has_recovered = False
        lost: errors.ParameterServerLostError | None = None
        for gate in gates:
            try:
                has_recovered |= gate()
            except errors.ParameterServerLostError as error:
                lost = error
        if lost is not None and not has_recovered:
            raise lost
        return has_recovered
