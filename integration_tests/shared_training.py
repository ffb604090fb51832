"""Helpers of training tests: a model's state, events, and assertions."""

import threading
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import tfps_plugin as tfps
from tfps_plugin.monitoring import events

# Maximum number of steps, unless `steps_per_execution` is given.
STEPS_A_CALL = 10
_EVENT_SECONDS = 120.0


class At(keras.callbacks.Callback):
    """Runs actions after some batches of the whole call."""

    def __init__(self, actions: dict[int, Callable[[], None]]) -> None:
        super().__init__()
        self._actions = actions
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._count()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._count()

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self._count()

    def _count(self) -> None:
        self._batches += 1
        if self._batches in self._actions:
            self._actions[self._batches]()


class Seen:
    """Events that a coordinator has published; waits for more."""

    def __init__(self, coordinator: tfps.ClusterCoordinator) -> None:
        self._changed = threading.Condition()
        self._events: list[Any] = []
        self.on_event: Callable[[Any], None] = lambda event: None
        self._coordinator = coordinator
        coordinator.events.subscribe(self._note)

    def of(self, kind: type) -> list[Any]:
        """Returns all events of a kind so far, in their order."""
        with self._changed:
            return [each for each in self._events if isinstance(each, kind)]

    def wait_for(self, kind: type, number: int = 1) -> Any:
        """Waits for the event of that kind and number, counted from one."""

        def has_come() -> bool:
            return sum(isinstance(e, kind) for e in self._events) >= number

        with self._changed:
            assert self._changed.wait_for(has_come, _EVENT_SECONDS), (
                f"{kind.__name__} {number} is not among {self._events}"
            )
        return self.of(kind)[number - 1]

    def wait_for_all_workers(self) -> None:
        """Waits until all workers are present.

        A worker that came back may be removed and readmitted once more, when
        its earlier connection breaks the new one.
        """
        deadline = time.monotonic() + _EVENT_SECONDS
        with self._changed:
            while absent := self._coordinator.absent_workers:
                assert time.monotonic() < deadline, (absent, self._events)
                # An event may come before the worker is counted again.
                self._changed.wait(0.1)

    def recovered(self) -> list[int]:
        """Returns the parameter servers that were restored, in their order."""
        return [e.ps_index for e in self.of(events.ParameterServerRecovered)]

    def _note(self, event: Any) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()
        self.on_event(event)


class Load(threading.Thread):
    """Schedules a function endlessly, as a custom loop does."""

    def __init__(
        self, coordinator: tfps.ClusterCoordinator, function: Callable[[], Any]
    ) -> None:
        super().__init__(daemon=True)
        self._coordinator = coordinator
        self._function = function
        self._changed = threading.Condition()
        self._is_over = threading.Event()
        self._done = 0

    def run(self) -> None:
        while not self._is_over.is_set():
            value = self._coordinator.schedule(self._function)
            value.on_ended(self._count)

    def wait_for(self, number: int) -> int:
        """Waits until so many calls have ended; returns the actual number."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: self._done >= number, _EVENT_SECONDS
            )
            return self._done

    def end(self) -> int:
        """Stops scheduling; returns the number of all ended calls."""
        self._is_over.set()
        self.join(_EVENT_SECONDS)
        self._coordinator.join()
        return self.wait_for(0)

    def _count(self) -> None:
        with self._changed:
            self._done += 1
            self._changed.notify_all()


def ids_and_targets(
    num_rows: int, num_examples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids of a table, of shape `(N, 4)`, and targets to learn."""
    random = np.random.default_rng(0)
    ids = random.integers(0, num_rows, (num_examples, 4)).astype("int32")
    return ids, (ids.mean(axis=1, keepdims=True) / num_rows).astype("float32")


def variables_of(model: keras.Model) -> list[Any]:
    """Returns all that a checkpoint restores, including optimizer slots.

    `model.variables` does not include the optimizer. Metrics are left out: the
    next call resets them anyway.
    """
    metrics = {id(v) for v in model.metrics_variables}
    everything = [*model.variables, *model.optimizer.variables]
    return [v for v in everything if id(v) not in metrics]


def state_of(model: keras.Model) -> list[np.ndarray]:
    """Returns the values of `variables_of` a model."""
    return [keras.ops.convert_to_numpy(v) for v in variables_of(model)]


def assert_state(model: keras.Model, expected: list[np.ndarray]) -> None:
    """Checks that every variable and slot has that value, to the last bit."""
    variables = variables_of(model)
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(variable), value, variable.path
        )


def slots_of(model: keras.Model) -> list[Any]:
    """Returns the optimizer's slots: its variables that are no scalars."""
    return [v for v in model.optimizer.variables if len(v.shape)]


def assert_slots_are_trained(model: keras.Model) -> None:
    """Checks that all slots have changed, so that comparing them is useful."""
    slots = slots_of(model)
    assert len(slots) >= len(model.trainable_variables), "no slots"
    for slot in slots:
        assert np.any(keras.ops.convert_to_numpy(slot)), slot.path


def shards_of(model: keras.Model) -> list[tuple[str, int, np.ndarray]]:
    """Returns path, ps and value of each shard, including those of slots."""
    found = []
    for variable in variables_of(model):
        if len(variable.shape):
            value = variable.value
            for shard in getattr(value, "variables", [value]):
                index = int(shard.device.split("task:")[1].split("/")[0])
                found.append((variable.path, index, shard.numpy()))
    return found


def assert_went_on(model: keras.Model, history: Any, num_steps: int) -> None:
    """Checks that it has learned, is intact, and has made all steps.

    Args:
        model: The model after `fit`.
        history: The result of `fit`, or its `history`.
        num_steps: Steps requested since the model was made.
    """
    losses = getattr(history, "history", history)["loss"]
    assert np.isfinite(losses).all(), losses
    assert losses[-1] < losses[0], losses
    for variable in variables_of(model):
        value = keras.ops.convert_to_numpy(variable)
        assert np.isfinite(value).all(), variable.path
    iterations = int(model.optimizer.iterations)
    assert iterations >= num_steps, (iterations, num_steps)


def assert_few_steps_twice(
    model: keras.Model,
    coordinator: tfps.ClusterCoordinator,
    num_steps: int,
    num_losses: int,
) -> None:
    """Checks that few, counted steps were applied twice after losses of a ps.

    A call may begin more often: workers retry until they have found the ps
    again, and apply nothing without it.

    Args:
        model: The model after `fit`.
        coordinator: The coordinator, which has made only these steps.
        num_steps: Steps requested since the model was made.
        num_losses: Number of losses of a ps; each interrupts a call of each
            lane.
    """
    counters = coordinator.counters
    twice = int(model.optimizer.iterations) - num_steps
    again = counters.value("steps_again")
    broken_off = counters.value("closures_retried")
    broken_off += counters.value("closures_abandoned")
    assert 0 <= twice <= again <= broken_off * STEPS_A_CALL, (
        twice,
        counters.snapshot(),
    )
    most_calls = coordinator.num_workers * coordinator.in_flight_limits.most
    assert twice <= num_losses * most_calls * STEPS_A_CALL, twice
