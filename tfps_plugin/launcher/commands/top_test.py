import pytest
from click.testing import CliRunner

from tfps_plugin import errors
from tfps_plugin.launcher.commands.status import status
from tfps_plugin.launcher.commands.top import top
from tfps_plugin.monitoring.serving import state_client
from tfps_plugin.monitoring.serving.state_client import StateClient
from tfps_plugin.monitoring.state.cluster_state import ClusterState
from tfps_plugin.monitoring.state.testing import example_state


class _Job(StateClient):
    """A job that tells its state once, and then raises an error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(("127.0.0.1", 1))
        self._error = error
        self._looks = 0

    def state(self) -> ClusterState:
        self._looks += 1
        if self._looks == 1:
            return example_state()
        raise self._error


def _unreachable(cause: Exception | None) -> Exception:
    error = errors.JobUnreachableError("it does not answer")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (ConnectionRefusedError(), "The job has ended."),
        (FileNotFoundError(), "The job has ended."),
        (TimeoutError(), "it does not answer"),
        (None, "it does not answer"),
    ],
    ids=repr,
)
def test_only_a_job_that_has_ended_is_told_to_have(
    cause: Exception | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _Job(_unreachable(cause))
    monkeypatch.setattr(state_client, "of_this_machine", lambda number: job)
    ended = CliRunner().invoke(top, ["--interval", "0.5"])
    assert ended.exit_code == 0, ended.output
    assert ended.output.rstrip().endswith(text)


def test_a_state_of_another_release_is_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = _Job(errors.InternalError("not understood"))
    job.state()
    monkeypatch.setattr(state_client, "of_this_machine", lambda number: job)
    ended = CliRunner().invoke(status)
    assert ended.exit_code == 1
    assert "not understood" in ended.output


@pytest.mark.parametrize("token", ["secret\n", "two words", "schlüssel"])
def test_a_token_that_cannot_be_sent_is_refused(token: str) -> None:
    ended = CliRunner().invoke(
        status, ["--connect", "127.0.0.1:1", "--token", token]
    )
    assert ended.exit_code == 2
    assert "--token" in ended.output
    assert token not in ended.output
