import asyncio
import dataclasses
import json
import socket
from typing import Any

import httpx
import pytest

from tfps_plugin import errors
from tfps_plugin.dashboard import app
from tfps_plugin.dashboard.feed import Feed
from tfps_plugin.monitoring.serving.state_client import StateClient
from tfps_plugin.monitoring.state import json_form
from tfps_plugin.monitoring.state.cluster_state import ClusterState
from tfps_plugin.monitoring.state.testing import example_state


class _Job(StateClient):
    """A job that can end."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 1))
        self.has_ended = False

    def state(self) -> ClusterState:
        if self.has_ended:
            raise errors.JobUnreachableError("the job has ended")
        return example_state()


def _get(path: str, **headers: str) -> httpx.Response:
    """Returns the answer of the application, without a network."""

    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(app.make_app(Feed(_Job(), 0.01)))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1"
        ) as client:
            return await client.get(path, headers=headers)

    return asyncio.run(get())


def test_the_page_and_its_parts_are_there() -> None:
    page = _get("/")
    assert page.status_code == 200
    for part in (
        "dashboard.js",
        "dashboard.css",
        "uPlot.iife.min.js",
        "uPlot.min.css",
    ):
        assert f"/static/{part}" in page.text
        assert _get(f"/static/{part}").status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    # It loads nothing from elsewhere.
    assert "http" not in page.text


def test_other_names_of_this_machine_get_nothing() -> None:
    assert _get("/", host="evil.example").status_code == 400


async def _first(feed: Feed, count: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    async with feed.running():
        async for message in feed.messages():
            messages.append(json.loads(message))
            if len(messages) == count:
                break
    return messages


def test_a_page_gets_the_history_and_then_states() -> None:
    feed = Feed(_Job(), 0.01)
    history, first, second = asyncio.run(_first(feed, 3))
    assert history == {"kind": "history", "data": []}
    for message in (first, second):
        assert message["kind"] == "state"
        assert (
            json_form.decode(json.dumps(message["data"]["state"]))
            == example_state()
        )
        assert message["data"]["point"]["loss"] == 0.4321
    # Another page begins with what the first one has seen.
    (again,) = asyncio.run(_first(feed, 1))
    assert again["data"] == [first["data"]["point"]]


def test_a_page_is_told_that_the_job_has_ended() -> None:
    job = _Job()
    job.has_ended = True
    _, message = asyncio.run(_first(Feed(job, 0.01), 2))
    assert message == {"kind": "unreachable", "data": "the job has ended"}


def test_a_state_that_cannot_be_shown_is_told_and_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = _Job()
    answers = iter([dataclasses.replace(example_state(), time=float("nan"))])
    monkeypatch.setattr(job, "state", lambda: next(answers, example_state()))
    feed = Feed(job, 0.01)
    _, refused, shown = asyncio.run(_first(feed, 3))
    assert refused["kind"] == "unreachable"
    assert "ValueError" in refused["data"]
    assert shown["kind"] == "state"
    # A new page gets what could be shown.
    (history,) = asyncio.run(_first(feed, 1))
    assert history["data"] == [shown["data"]["point"]]


def test_a_taken_port_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            app.serve(Feed(_Job(), 0.01), port, lambda address: None)
