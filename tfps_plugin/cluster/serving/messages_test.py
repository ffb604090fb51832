"""Tests that messages to tasks survive encoding."""

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster.serving import messages


@pytest.mark.parametrize(
    "message",
    [
        messages.ChiefHere("id", "a:1", 2**63 + 7),
        messages.JobOver("id"),
        messages.Leaving("id", 3, 25.0),
    ],
)
def test_a_message_arrives_as_it_was_sent(message: messages.Message) -> None:
    assert messages.decode(messages.encode(message)) == message


@pytest.mark.parametrize(
    "text", ["", "7", "{}", '{"kind": "x"}', '{"kind": "job_over", "a": 1}']
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(errors.InternalError, match="text="):
        messages.decode(text)
