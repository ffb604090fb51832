"""The sockets at which a chief tells the state of its job."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

from tfps_plugin.cluster import spec
from tfps_plugin.monitoring.serving.state_server import StateServer
from tfps_plugin.monitoring.state.cluster_state import ClusterState


class StateEndpoint:
    """A server of states; one of the parts of a connection.

    Strategies for the same cluster share it. It tells the state of the newest.

    Threading: safe from any thread. Guarded by `_lock`: everything.
    """

    def __init__(self) -> None:
        """Begins without a server."""
        self._lock = threading.Lock()
        self._server: StateServer | None = None
        self._options: Any = None
        # Whether one of the server's threads has seen that nobody needs it.
        self._is_ending = False
        self._source: Callable[[], Callable[[], ClusterState] | None]
        self._source = lambda: None

    def show(self, strategy: Any, state: Callable[[], ClusterState]) -> None:
        """Tells the state of a strategy from now on.

        Args:
            strategy: The strategy, which is not kept alive. Its options say
                where to listen.
            state: A method of its monitor that returns the state.

        Raises:
            ClusterConfigurationError: If it cannot listen at the address.
        """
        options = strategy.monitoring
        with self._lock:
            self._source = weakref.WeakMethod(state)
            server = self._server
            if server is not None:
                is_serving = server.is_serving and not self._is_ending
                if is_serving and options == self._options:
                    return
                server.stop()
            self._options, self._server = options, None
            self._is_ending = False
            if not options.enabled:
                return
            self._server = StateServer(
                self._state,
                address=options.address and spec.split_address(options.address),
                token=options.token,
                is_wanted=self._is_wanted,
            )
            server = self._server
            server.start()
        strategy.session.connection.on_end(lambda error: _stop(server))

    @property
    def port(self) -> int | None:
        """Port of the address at which it listens; None if there is none."""
        with self._lock:
            return None if self._server is None else self._server.port

    def _is_wanted(self) -> bool:
        # `show` may wait for the thread that asks this: it asks again soon.
        if not self._lock.acquire(blocking=False):
            return True
        try:
            if self._source() is None:
                self._is_ending = True
            return not self._is_ending
        finally:
            self._lock.release()

    def _state(self) -> ClusterState:
        state = self._source()
        if state is None:
            raise ReferenceError("The strategy is gone, and with it its job.")
        return state()


def _stop(server: StateServer) -> bool:
    server.stop()
    return True
