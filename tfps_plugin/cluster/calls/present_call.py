"""What the function needs that a lane calls at the moment. Pure."""

import contextlib
import time
from collections.abc import Collection
from collections.abc import Iterator


class PresentCall:
    """The call that a run of a closure waits for, if it waits for one.

    Threading: `needing` is used by the thread that calls, `needs` by any.
    """

    __slots__ = ("_is_under_way", "_parameter_servers", "_since")

    def __init__(self) -> None:
        """Begins with no call."""
        self._parameter_servers: Collection[int] = ()
        self._since = 0.0
        self._is_under_way = False

    @property
    def is_under_way(self) -> bool:
        """Whether a call waits for its end."""
        return self._is_under_way

    @contextlib.contextmanager
    def needing(self, parameter_servers: Collection[int]) -> Iterator[None]:
        """Says that what runs inside is a call.

        Args:
            parameter_servers: The indices of those that it cannot do without.
        """
        self._since = time.monotonic()
        self._parameter_servers = parameter_servers
        self._is_under_way = True
        try:
            yield
        finally:
            self._is_under_way = False
            self._parameter_servers = ()

    def needs(self, parameter_servers: Collection[int], before: float) -> bool:
        """Whether a call waits that began early enough and needs any of them.

        Args:
            parameter_servers: Their indices.
            before: The time that it began before (monotonic).
        """
        return self._since < before and any(
            index in self._parameter_servers for index in parameter_servers
        )
