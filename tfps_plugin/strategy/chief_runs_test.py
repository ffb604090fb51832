import threading
import warnings
from collections.abc import Callable

import pytest

from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.strategy.chief_runs import ChiefRuns


def _warnings_of(*calls: Callable[[], None]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for call in calls:
            call()
    return [str(each.message) for each in caught]


def test_a_call_on_the_chief_is_told_of_once() -> None:
    runs = ChiefRuns()
    (text,) = _warnings_of(*[lambda: runs.note(3)] * 3)
    for part in ("3 workers wait", "    coordinator.schedule(", "model.fit()"):
        assert part in text


def test_what_is_traced_or_run_for_workers_is_not() -> None:
    runs = ChiefRuns()

    def traced() -> None:
        with runs.traced_for_workers(), runs.traced_for_workers():
            runs.note(3)

    def on_a_lane() -> None:
        context = DispatchContext(0, 0, 1, "/device:CPU:0")
        with dispatch_context.dispatching(context):
            runs.note(3)

    assert not _warnings_of(traced, on_a_lane)
    assert _warnings_of(lambda: runs.note(3))


def test_another_thread_that_traces_changes_nothing() -> None:
    runs = ChiefRuns()
    entered, over = threading.Event(), threading.Event()

    def trace() -> None:
        with runs.traced_for_workers():
            entered.set()
            over.wait(30)

    thread = threading.Thread(target=trace)
    thread.start()
    assert entered.wait(30)
    try:
        assert _warnings_of(lambda: runs.note(3))
    finally:
        over.set()
        thread.join(30)


@pytest.mark.parametrize(
    ("module", "number"),
    [("keras.src.backend.tensorflow.trainer", 0), ("keras_of_mine", 1)],
)
def test_keras_computes_single_batches_on_the_chief(
    module: str, number: int
) -> None:
    runs = ChiefRuns()
    # Calls our part of `strategy.run` as TensorFlow does.
    tensorflow: dict[str, object] = {"__name__": "tensorflow.distribute"}
    exec("def run(runs):\n    runs.note(2)\n", tensorflow)
    caller: dict[str, object] = {"__name__": module, **_only(tensorflow, "run")}
    exec("def step(runs):\n    run(runs)\n", caller)
    step = caller["step"]
    assert callable(step)
    assert len(_warnings_of(lambda: step(runs))) == number


def _only(namespace: dict[str, object], name: str) -> dict[str, object]:
    return {name: namespace[name]}
