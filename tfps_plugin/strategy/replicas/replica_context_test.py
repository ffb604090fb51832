"""Tests of where a reduction over workers is refused."""

import types
from typing import Any

import pytest

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.strategy.chief_runs import ChiefRuns
from tfps_plugin.strategy.replicas import replica_context
from tfps_plugin.variables import testing
from tfps_plugin.variables.step_trace import StepTrace


def _strategy(consistency: Any = None, num_workers: int = 2) -> Any:
    return types.SimpleNamespace(
        consistency=consistency or tfps.Sync(),
        worker_devices=("device",) * num_workers,
        extended=types.SimpleNamespace(chief_runs=ChiefRuns()),
    )


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> StepTrace:
    """Returns the step of the function that the test seems to trace."""
    trace = StepTrace()
    monkeypatch.setattr(StepTrace, "current", lambda: trace)
    return trace


def test_one_worker_does_not_stand_for_all(trace: StepTrace) -> None:
    strategy = _strategy()
    with (
        strategy.extended.chief_runs.traced_for_workers(),
        pytest.raises(errors.UnsupportedError, match=r"Received: it elsewhere"),
    ):
        replica_context.require_one_replica(strategy, "it")
    with (
        testing.lane(0),
        pytest.raises(errors.UnsupportedError, match=r"Received: it elsewhere"),
    ):
        replica_context.require_one_replica(strategy, "it")
    assert not trace.reduces_alone


@pytest.mark.parametrize(
    "strategy",
    [
        _strategy(num_workers=1),
        _strategy(tfps.Async()),
        _strategy(tfps.BoundedStaleness(max_staleness=2)),
    ],
    ids=["one worker", "asynchronous", "bounded"],
)
def test_the_only_replica_has_its_own_value(
    trace: StepTrace, strategy: Any
) -> None:
    with strategy.extended.chief_runs.traced_for_workers():
        replica_context.require_one_replica(strategy, "it")
    assert not trace.reduces_alone


def test_a_discarded_trace_reduces_nothing(trace: StepTrace) -> None:
    trace.is_discarded = True
    strategy = _strategy()
    with strategy.extended.chief_runs.traced_for_workers():
        replica_context.require_one_replica(strategy, "it")
    assert not trace.reduces_alone


def test_an_update_on_a_ps_has_the_gradients_of_all(trace: StepTrace) -> None:
    trace.only_on = testing.LOCAL_DEVICE
    strategy = _strategy()
    with strategy.extended.chief_runs.traced_for_workers():
        replica_context.require_one_replica(strategy, "it")
    assert not trace.reduces_alone


def test_a_function_of_the_chief_is_noted(trace: StepTrace) -> None:
    """If it is scheduled, the program is told."""
    replica_context.require_one_replica(_strategy(), "it")
    assert trace.reduces_alone
