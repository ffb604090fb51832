"""Tests of how spans of global steps are judged."""

import logging
import types
from typing import Any

import pytest

from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.training.synchronous.together import GlobalSteps

_ERROR = RuntimeError("of a ps")


class _Coordinator:
    """Coordinator that goes back at once."""

    num_set_back: int

    def __init__(self, *, has_checkpoint: bool = True) -> None:
        self.counters = Counters()
        self.num_set_back = 0
        self._has_checkpoint = has_checkpoint

    def set_back(self) -> None:
        self.num_set_back += 1
        if self._has_checkpoint:
            self.counters.increment("ps_recovered")


def _end(
    coordinator: Any, error: BaseException | None = None, num_done: int = 0
) -> None:
    """Judges a span, as the next one of other steps may be."""
    together: Any = None
    steps = GlobalSteps(coordinator, together)
    steps._num_recovered = coordinator.counters.value("ps_recovered")
    span: Any = types.SimpleNamespace(error=error, num_done=num_done)
    steps.require_recovered(span)


def test_variables_go_back_three_times_in_a_row(
    caplog: pytest.LogCaptureFixture,
) -> None:
    coordinator = _Coordinator()
    _end(coordinator, num_done=1)
    for _ in range(3):
        _end(coordinator, _ERROR)
    assert len(caplog.records) == 3
    with pytest.raises(RuntimeError, match="of a ps"):
        _end(coordinator, _ERROR)
    assert coordinator.num_set_back == 3
    # A step between them ends the row.
    _end(coordinator, num_done=1)
    _end(coordinator, _ERROR)
    assert coordinator.num_set_back == 4
    _end(coordinator, num_done=1)


def test_without_a_checkpoint_nothing_is_said_to_go_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    coordinator = _Coordinator(has_checkpoint=False)
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(RuntimeError, match="of a ps"),
    ):
        _end(coordinator, _ERROR)
    assert not caplog.records
    _end(coordinator, num_done=1)
