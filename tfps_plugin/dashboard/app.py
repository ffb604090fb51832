"""The page of a job and its data, over HTTP.

GET /          the page
GET /static/   what it consists of
GET /stream    the history, then a message a second, as server-sent events
"""

import contextlib
import pathlib
import socket
from collections.abc import AsyncIterator
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.base import RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.responses import Response
from starlette.responses import StreamingResponse
from starlette.routing import Mount
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from tfps_plugin.dashboard.feed import Feed

_STATIC = pathlib.Path(__file__).parent / "static"
# The page loads nothing from elsewhere, and no other page shows it in a frame.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'"
)


def make_app(feed: Feed) -> Starlette:
    """Returns the application.

    Args:
        feed: The states that it shows.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with feed.running():
            yield

    async def page(request: Request) -> Response:
        return FileResponse(_STATIC / "index.html")

    async def stream(request: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            async for message in feed.messages():
                yield f"data: {message}\n\n"

        return StreamingResponse(
            events(),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    return Starlette(
        routes=[
            Route("/", page),
            Route("/stream", stream),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        middleware=[
            # Another site that resolves its name to this machine gets nothing.
            Middleware(
                TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"]
            ),
            Middleware(_SecurityHeaders),
        ],
        lifespan=lifespan,
    )


class _SecurityHeaders(BaseHTTPMiddleware):
    """Tells browsers what the page may do."""

    async def dispatch(
        self, request: Request, call_next: RequestResponseEndpoint
    ) -> Response:
        """Answers a request."""
        response = await call_next(request)
        response.headers["Content-Security-Policy"] = _POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response


class _Server(uvicorn.Server):
    """Server that tells when it is ready."""

    def __init__(
        self, config: uvicorn.Config, on_ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to serve."""
        await super().startup(sockets)
        self._on_ready()


def serve(feed: Feed, port: int, on_ready: Callable[[str], None]) -> None:
    """Serves the page on this machine, until Ctrl-C.

    Args:
        feed: The states that it shows.
        port: The port; 0 for any free one.
        on_ready: Called with the address of the page, once it answers.

    Raises:
        OSError: If the port is taken.
    """
    with socket.create_server(("127.0.0.1", port)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        server = _Server(
            uvicorn.Config(
                make_app(feed),
                log_level="warning",
                # Pages keep their connection open: do not wait for them.
                timeout_graceful_shutdown=1,
            ),
            lambda: on_ready(address),
        )
        server.run(sockets=[listener])
