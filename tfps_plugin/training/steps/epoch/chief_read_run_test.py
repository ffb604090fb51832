"""Tests of steps whose states pass from batch to batch, one call at a time."""

import itertools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.coordinator.in_flight_limits import InFlightLimits
from tfps_plugin.coordinator.stragglers.windows import Observation
from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.monitoring.state.progress import Progress
from tfps_plugin.training.steps.epoch import step_run
from tfps_plugin.training.steps.epoch.chief_read_run import ChiefReadRun

_LANE = dispatch_context.DispatchContext(0, 0, 0, "/job:worker/task:0")


class _Coordinator:
    """Runs scheduled closures when the test says so."""

    num_lanes = 4
    in_flight_limits = InFlightLimits(at_first=2, most=4, least=1)
    has_error = False

    def __init__(self) -> None:
        self.strategy = types.SimpleNamespace(progress=Progress())
        self.calls: list[Callable[[], None]] = []
        self.counters = Counters()
        self.observed: list[Observation] = []

    def limit_in_flight(self, number: int) -> None:
        self.limit: int | None = number

    def observe_steps(
        self,
        kind: Any,
        work: str,
        made: Observation,
        now: float,
        *,
        together: bool,
    ) -> None:
        assert not together
        self.observed.append(made)

    def schedule(self, call: Callable[[], None]) -> Any:
        self.calls.append(call)
        return types.SimpleNamespace(
            is_ready=lambda: True, on_ended=lambda told: told()
        )


class _Functions:
    """A step whose worker is lost in the first call."""

    local_steps = 1
    layout_version = traced_for_layout = 0
    work = "fit of a model"

    def workers_changed(self) -> None:
        """Does nothing: they are the same."""

    def __init__(self, *, in_order: bool, exact: bool) -> None:
        self.states = types.SimpleNamespace(
            in_order=in_order, announce_order=lambda: None
        )
        self.counts_exactly = exact
        self.require_workers = lambda: None
        self.num_calls = 0
        self.pace = types.SimpleNamespace(
            most_steps=10, is_known=False, observe=lambda *args: None
        )
        self.calls_in_flight = types.SimpleNamespace(
            went_idle=lambda: None,
            begin_epoch=lambda: None,
            observe=lambda *args: None,
            observe_loss=lambda *args: None,
            is_kept=False,
            watches_loss=True,
            number=1,
        )
        self.loss_reports = types.SimpleNamespace(
            begin_epoch=lambda: None, since_last=lambda lane, loss: loss
        )

    def on_group(self, codec: Any) -> Any:
        return self._call

    def choose_updates(self) -> bool:
        return False

    def _call(self, group: Any) -> Any:
        self.num_calls += 1
        if self.num_calls == 1:
            raise tf.errors.UnavailableError(None, None, "lost")
        return types.SimpleNamespace(counted={}, outputs={})


def _begun(functions: Any) -> tuple[ChiefReadRun, _Coordinator]:
    coordinator: Any = _Coordinator()
    nothing: Any = types.SimpleNamespace(
        update=lambda: None, report=lambda outputs: None
    )
    batches = itertools.repeat(tf.constant(["a batch"]))
    codec: Any = None
    run = ChiefReadRun(
        coordinator,
        functions,
        nothing,
        codec=codec,
        batches=batches,
        steps_per_closure=lambda asked, most: 1,
    )
    run.request(1)
    with pytest.raises(tf.errors.UnavailableError):
        coordinator.calls[0]()
    return run, coordinator


def test_a_call_has_whole_rounds_of_local_steps() -> None:
    functions: Any = _Functions(in_order=False, exact=False)
    run, coordinator = _begun(functions)
    functions.local_steps = 4
    for _ in range(7):
        run.request(1)
    # One call before, one of four steps, and three steps that wait.
    assert len(coordinator.calls) == 2
    run.request(1)
    assert len(coordinator.calls) == 3


def test_what_evaluate_has_begun_in_order_is_not_made_again() -> None:
    functions = _Functions(in_order=True, exact=True)
    run, coordinator = _begun(functions)
    with pytest.raises(errors.WorkerLostError, match="Reset the states"):
        coordinator.calls[0]()
    assert functions.num_calls == 1
    assert run.done == 0


@pytest.mark.parametrize(
    ("in_order", "exact"), [(True, False), (False, True), (False, False)]
)
def test_everything_else_is_made_again(in_order: bool, exact: bool) -> None:
    run, coordinator = _begun(_Functions(in_order=in_order, exact=exact))
    with dispatch_context.dispatching(_LANE):
        coordinator.calls[0]()
    assert run.done == 1
    (made,) = coordinator.observed
    assert made.num_steps == 1
    assert made.seconds > 0
    assert made.input_seconds == 0.0, "the chief reads it"


@pytest.mark.parametrize(("in_order", "is_little"), [(True, 0), (False, 7)])
def test_how_many_calls_are_in_flight(in_order: bool, is_little: int) -> None:
    run, _ = _begun(_Functions(in_order=in_order, exact=False))
    busy: Any = types.SimpleNamespace(is_ready=lambda: False)
    run._in_flight = [busy] * is_little
    assert run._is_little_in_flight()
    run._in_flight = [busy] * (is_little + 1)
    assert not run._is_little_in_flight()


@pytest.mark.parametrize(
    ("exact", "limit", "losses"), [(False, 3, [0.5]), (True, None, [])]
)
def test_only_training_has_the_number_at_a_time_found(
    exact: bool, limit: int | None, losses: list[float]
) -> None:
    functions: Any = _Functions(in_order=False, exact=exact)
    functions.calls_in_flight.number = 3
    seen: list[float] = []

    def note(num_steps: int, lane: int, mean: float, now: float) -> None:
        seen.append(mean)

    functions.calls_in_flight.observe_loss = note
    run, coordinator = _begun(functions)
    run._progress.report = lambda outputs: {"loss": np.float32(0.5)}  # type: ignore[method-assign]
    coordinator.limit = None
    with dispatch_context.dispatching(_LANE):
        coordinator.calls[0]()
    assert coordinator.limit == limit
    assert seen == losses
    # Closures that still run after the epoch change nothing.
    run.close()
    assert coordinator.limit == coordinator.in_flight_limits.at_first


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ({"loss": np.float32(2.5), "auc": 0.5}, 2.5),
        ({"d_loss": 1.0, "g_loss": 2.0}, None),
        ({"loss": np.ones(3)}, None),
        (np.float32(1.0), None),
        (None, None),
        ({"loss": {"total": 1.0, "regularization": 0.5}}, None),
        ({"loss": {"total": 1.0}}, None),
        ({"loss": [1.0]}, None),
        ({"loss": "1.0"}, None),
        ({"loss": b"1"}, None),
        ({"loss": np.array(["1"], object)}, None),
        ({"loss": np.array("1")}, None),
        ({"loss": np.bool_(True)}, None),
        ({"loss": True}, None),
        ({"loss": np.complex64(1.0)}, None),
        ({"loss": 1j}, None),
        ({"loss": 10**400}, None),
        ({"loss": np.float32(np.nan)}, None),
        ({"loss": np.array([], np.float32)}, None),
        ({"loss": 2}, 2.0),
        ({"loss": np.int64(2)}, 2.0),
        ({"loss": np.array([[1.5]])}, 1.5),
        ({"loss": tf.constant(1.5, tf.bfloat16).numpy()}, 1.5),
        ({"loss": np.float16(1.5)}, 1.5),
    ],
)
def test_the_loss_of_what_a_step_returns(
    reported: Any, expected: float | None
) -> None:
    assert step_run.loss_of(reported) == expected


@pytest.mark.parametrize(
    "error", [tf.errors.UnavailableError(None, None, "lost"), TypeError()]
)
def test_a_loss_that_cannot_be_read_does_not_hold_up_training(
    error: Exception,
) -> None:
    functions: Any = _Functions(in_order=False, exact=False)
    seen: list[Any] = []
    functions.calls_in_flight.observe_loss = lambda *args: seen.append(args[2])

    def fail(lane: int, loss: float) -> float:
        raise error

    functions.loss_reports.since_last = fail
    run, coordinator = _begun(functions)
    run._progress.report = lambda outputs: {"loss": np.float32(0.5)}  # type: ignore[method-assign]
    with dispatch_context.dispatching(_LANE):
        coordinator.calls[0]()
    assert run.done == 1
    assert seen == [None]
