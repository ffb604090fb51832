"""Where the chief waits while lost parameter servers are brought back.

Variables know nothing of the coordinator, which knows who lives. It registers
here, and the chief's reads ask here when a task does not answer.
"""

import threading
from collections.abc import Callable

from tfps_plugin import errors

# Looks for lost ps and waits until they are back; whether to try again. Raises
# ParameterServerLostError if one cannot come back.
Gate = Callable[[], bool]

_lock = threading.Lock()
_gates: list[Gate] = []


def register(gate: Gate) -> Callable[[], None]:
    """Has `wait` ask a coordinator.

    Args:
        gate: Called on the thread of whoever waits.

    Returns:
        A function that ends this; calling it again is fine.
    """
    with _lock:
        _gates.append(gate)

    def unregister() -> None:
        with _lock:
            if gate in _gates:
                _gates.remove(gate)

    return unregister


def wait() -> bool:
    """Waits until lost parameter servers are back.

    Returns:
        Whether some were lost and are back, so that what has failed may be
        tried again.

    Raises:
        ParameterServerLostError: If one is lost that cannot come back, and
            none came back.
    """
    with _lock:
        gates = list(_gates)
    # All of them: it is not known whose variable could not be read.
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
