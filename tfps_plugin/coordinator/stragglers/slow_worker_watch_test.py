"""Tests that slow workers are reported once."""

import gc
import threading
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.coordinator.closures.arguments import Call
from tfps_plugin.coordinator.stragglers.comparison import Comparison
from tfps_plugin.coordinator.stragglers.diagnosis import Probes
from tfps_plugin.coordinator.stragglers.slow_worker_watch import SlowWorkerWatch
from tfps_plugin.coordinator.stragglers.windows import Observation
from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.counters import Counters

_TIMEOUT_SECONDS = 30.0


class _Job:
    """Workers that make calls, and what is reported of them."""

    def __init__(
        self,
        fraction: float | None = 0.5,
        measure: Callable[[Collection[int]], Probes] = lambda workers: {},
    ) -> None:
        self.counters = Counters()
        self.found: list[events.WorkerSlow] = []
        self.reported = threading.Event()
        board = events.Events()
        board.subscribe(self._note)
        self.watch = SlowWorkerWatch(
            fraction,
            self.counters,
            board,
            present=lambda: range(4),
            address=lambda index: f"host-{index}:1",
            measure=measure,
        )
        self._now = 0.0

    def _note(self, event: events.Event) -> None:
        assert isinstance(event, events.WorkerSlow)
        self.found.append(event)
        self.reported.set()

    def make(
        self,
        *seconds: float,
        waits: float = 0.0,
        generation: int = 0,
        kind: str = "fit",
    ) -> None:
        """Has each worker make some calls, which take so many seconds."""
        for _ in range(17):
            for worker_index, each in enumerate(seconds):
                self.watch.observe(
                    kind,
                    f"{kind} of m",
                    DispatchContext(worker_index, worker_index, generation, ""),
                    Observation(
                        20, 2 * each, 2 * waits if worker_index else 0.0
                    ),
                    self._now + 2 * each,
                )
            self._now += 2 * max(seconds)

    def wait(self) -> events.WorkerSlow:
        assert self.reported.wait(_TIMEOUT_SECONDS)
        self.reported.clear()
        self.settle()
        return self.found[-1]

    def settle(self) -> None:
        """Waits for the thread, if there is one."""
        thread = self.watch._thread
        if thread is not None:
            thread.join(_TIMEOUT_SECONDS)


@pytest.fixture
def job() -> Iterator[_Job]:
    made = _Job()
    yield made
    made.watch.stop(_TIMEOUT_SECONDS)


def test_a_slow_worker_is_reported_once(job: _Job) -> None:
    job.make(1.0, 4.0, waits=3.0)
    event = job.wait()
    assert event.worker_index == 1
    assert event.address == "host-1:1"
    assert event.steps_per_second == pytest.approx(2.5)
    assert event.median_steps_per_second == pytest.approx(10.0)
    assert event.slow_at == "input"
    for part in (
        "Worker 1 at host-1:1",
        "2.5 steps",
        "others is 10",
        "at input",
    ):
        assert part in str(event)
    job.make(1.0, 4.0, waits=3.0)
    job.settle()
    assert len(job.found) == 1
    assert job.counters.value("workers_slow") == 1


def test_it_is_reported_again_after_it_was_fast(job: _Job) -> None:
    job.make(1.0, 4.0, waits=3.0)
    job.wait()
    # Neither slow nor even.
    job.make(1.0, 1.8)
    job.make(1.0, 4.0, waits=3.0)
    job.settle()
    assert len(job.found) == 1
    job.make(1.0, 1.0)
    job.make(1.0, 4.0, waits=3.0)
    job.wait()
    assert len(job.found) == 2


def test_a_worker_that_is_back_is_reported_again(job: _Job) -> None:
    job.make(1.0, 4.0, waits=3.0)
    job.wait()
    job.make(1.0, 4.0, waits=3.0, generation=1)
    job.wait()
    assert len(job.found) == 2


def test_a_worker_that_is_fast_at_other_work_is_not_reported_again(
    job: _Job,
) -> None:
    job.make(1.0, 4.0, waits=3.0)
    job.wait()
    for _ in range(3):
        job.make(1.0, 1.0, kind="evaluate")
        job.make(1.0, 4.0, waits=3.0)
        job.settle()
    assert len(job.found) == 1
    # Slow at what comes later, and then fast at it.
    job.make(1.0, 4.0, waits=3.0, kind="fit 2")
    job.make(1.0, 1.0, kind="fit 2")
    job.settle()
    assert len(job.found) == 1
    job.make(1.0, 4.0, waits=3.0)
    job.wait()
    assert len(job.found) == 2


def test_kinds_in_turn_are_compared_once_a_second(
    job: _Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Hashable] = []

    def compare(kind: Hashable, *_: Any) -> Comparison:
        compared.append(kind)
        return Comparison((), frozenset())

    monkeypatch.setattr(job.watch.rates, "compare", compare)
    for number in range(41):
        job.watch.observe(
            number % 2,
            "step",
            DispatchContext(0, 0, 0, ""),
            Observation(1, 0.1),
            number * 0.1,
        )
    assert compared.count(0) == 5
    assert compared.count(1) == 4


def test_functions_at_the_same_address_are_different_work(job: _Job) -> None:
    kinds: list[Any] = []
    for _ in range(3):

        @tf.function
        def my_step() -> tf.Tensor:
            return tf.constant(1.0)

        concrete = my_step.get_concrete_function()
        call = Call(
            concrete, (), {}, of=my_step, is_per_worker=False, concrete=concrete
        )
        job.watch.made(call, DispatchContext(0, 0, 0, ""), 0.0, 1.0)
        kinds = list(job.watch.rates._kinds)
        del call, concrete, my_step
        gc.collect()
    assert len(kinds) == len(set(kinds)) == 3
    assert job.counters.value("functions_done") == 3
    assert all(kind() is None for kind in kinds), "functions are kept"


def test_a_report_that_finds_no_thread_comes_later(
    job: _Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        job.make(1.0, 4.0, waits=3.0)
    assert not job.found
    job.make(1.0, 4.0, waits=3.0)
    job.wait()
    assert len(job.found) == 1


def test_the_network_is_measured_if_it_is_not_the_input() -> None:
    job = _Job(measure=lambda workers: {0: {0: 0.002}, 1: {0: 0.2}})
    job.make(1.0, 4.0)
    event = job.wait()
    assert event.slow_at == "network"
    assert "parameter server 0" in str(event)
    job.watch.stop(_TIMEOUT_SECONDS)


def test_a_measurement_that_fails_disturbs_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(workers: Collection[int]) -> Probes:
        assert workers == [1]
        raise RuntimeError("broken measurement")

    job = _Job(measure=fail)
    job.make(1.0, 4.0)
    job.settle()
    assert not job.found
    assert "broken measurement" in caplog.text
    job.watch.stop(_TIMEOUT_SECONDS)


def test_equal_workers_are_not_reported(job: _Job) -> None:
    job.make(1.0, 1.1, 0.9, 1.3)
    job.settle()
    assert not job.found


def test_nothing_is_reported_if_that_is_switched_off() -> None:
    job = _Job(fraction=None)
    job.make(1.0, 4.0)
    job.settle()
    assert not job.found
    # The rates are known nevertheless.
    assert job.watch.rates.relative("fit", 1) == 0.25
    assert len(job.watch.rates.rates(range(2))) == 2


def test_nothing_is_reported_after_the_end(job: _Job) -> None:
    job.watch.stop(_TIMEOUT_SECONDS)
    job.make(1.0, 4.0, waits=3.0)
    assert not job.found
