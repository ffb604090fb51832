"""Feed of states: asks the job, and hands each state to all open pages."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from tfps_plugin import errors
from tfps_plugin.dashboard.history import History
from tfps_plugin.dashboard.history import point_of
from tfps_plugin.monitoring.serving.state_client import StateClient
from tfps_plugin.monitoring.state import json_form

# A page that takes no more is behind: it gets the newest states.
_MOST_WAITING = 4


class Feed:
    """Asks one job for its state, once for all pages.

    Threading: everything runs in one event loop; the job is asked on a thread,
    which may wait.
    """

    def __init__(self, client: StateClient, interval_seconds: float) -> None:
        """Prepares; asks nothing yet.

        Args:
            client: Asks the job.
            interval_seconds: Seconds between two questions.
        """
        self._client = client
        self._interval_seconds = interval_seconds
        self._history = History()
        self._latest: str | None = None
        self._pages: set[asyncio.Queue[str]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Asks the job again and again, until the block ends."""
        task = asyncio.create_task(self._ask_again_and_again())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def messages(self) -> AsyncIterator[str]:
        """Yields the messages for one page: the history, then each state."""
        queue: asyncio.Queue[str] = asyncio.Queue(_MOST_WAITING)
        self._pages.add(queue)
        try:
            yield _message("history", self._history.points)
            if self._latest is not None:
                yield self._latest
            while True:
                yield await queue.get()
        finally:
            self._pages.discard(queue)

    async def _ask_again_and_again(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asked_at = loop.time()
            message = await asyncio.to_thread(self._ask)
            self._latest = message
            for queue in self._pages:
                if queue.full():
                    queue.get_nowait()
                queue.put_nowait(message)
            pause = asked_at + self._interval_seconds - loop.time()
            await asyncio.sleep(max(0.0, pause))

    def _ask(self) -> str:
        """Returns the message about the job as it is now."""
        try:
            state = self._client.state()
            shown = {
                "state": json.loads(json_form.encode(state)),
                "point": point_of(state),
            }
            message = _message("state", shown)
            # Only what can be shown: new pages get all of it.
            self._history.add(state)
            return message
        except errors.TfpsError as error:
            # It may be started again at the same address.
            return _message("unreachable", str(error))
        # Otherwise nobody would be asked any more, and the page stand still.
        except Exception as error:
            return _message("unreachable", f"{type(error).__name__}: {error}")


def _message(kind: str, data: Any) -> str:
    return json.dumps({"kind": kind, "data": data}, allow_nan=False)
