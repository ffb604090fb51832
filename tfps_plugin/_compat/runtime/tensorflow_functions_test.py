import gc
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin._compat import patch_table
from tfps_plugin._compat import patches
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin._compat.runtime import tensorflow_functions

_PATIENCE_SECONDS = 30.0
# Time to watch for an event that must not happen.
_WATCH_SECONDS = 0.3


@pytest.fixture(autouse=True)
def _installed() -> None:
    patches.apply(patch_table.CONNECTION)


class _Elsewhere:
    """A function that runs on another thread; tests can wait for its end."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._action()
        self._ended.set()

    def waits(self) -> bool:
        return not self._ended.wait(_WATCH_SECONDS)

    def ends(self) -> bool:
        self._thread.join(_PATIENCE_SECONDS)
        return self._ended.is_set()


def _trace() -> object:
    return tf.function(
        lambda x: x + 1, input_signature=[tf.TensorSpec([])]
    ).get_concrete_function()


@pytest.mark.parametrize(
    "action", [_trace, lambda: tf.data.Dataset.range(3).map(lambda x: x + 1)]
)
def test_what_is_traced_while_the_membership_changes_waits(
    action: Callable[[], object],
) -> None:
    with tensorflow_functions.registered_by_nobody_else():
        # The thread that changes the membership may trace.
        action()
        elsewhere = _Elsewhere(action)
        assert elsewhere.waits()
    assert elsewhere.ends()


def test_a_function_that_is_forgotten_waits_too() -> None:
    traced = [_trace()]
    with tensorflow_functions.registered_by_nobody_else():
        elsewhere = _Elsewhere(traced.clear)
        assert elsewhere.waits()
    assert elsewhere.ends()


def test_a_change_that_hangs_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tensorflow_functions, "_PATIENCE_SECONDS", 0.2)
    with tensorflow_functions.registered_by_nobody_else():
        assert _Elsewhere(_trace).ends()
        # A thread that waited now would wait longer than this test.
        monkeypatch.setattr(tensorflow_functions, "_PATIENCE_SECONDS", 100.0)
        assert _Elsewhere(_trace).ends()
    with tensorflow_functions.registered_by_nobody_else():
        next_one = _Elsewhere(_trace)
        assert next_one.waits()
    assert next_one.ends()


class _Tasks:
    """Tasks that answer or not."""

    def __init__(self) -> None:
        self.is_silent = False
        self.num_asked = 0
        self.num_given_up = 0

    def are_answering(self) -> bool:
        self.num_asked += 1
        # As long as a question takes.
        threading.Event().wait(0.01)
        return not self.is_silent

    def stop_waiting(self) -> None:
        self.num_given_up += 1


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Tasks]:
    monkeypatch.setattr(tensorflow_functions, "_FRESH_SECONDS", 0.0)
    monkeypatch.setattr(tensorflow_functions, "_FRESH_TIMES", 0)
    monkeypatch.setattr(
        tensorflow_functions, "_roll_call", tensorflow_functions._RollCall()
    )
    made = _Tasks()
    tensorflow_functions.ask_first(made)
    yield made
    tensorflow_functions.ask_first(None)


def test_traces_wait_for_silent_tasks(tasks: _Tasks) -> None:
    _trace()
    assert tasks.num_asked
    tasks.is_silent = True
    with tensorflow_functions.asking_nobody():
        _trace()
    elsewhere = _Elsewhere(_trace)
    assert elsewhere.waits()
    tasks.is_silent = False
    assert elsewhere.ends()
    assert not tasks.num_given_up


def test_silent_tasks_are_waited_for_once(
    tasks: _Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorflow_functions, "_SILENCE_SECONDS", 0.2)
    tasks.is_silent = True
    assert _Elsewhere(_trace).ends()
    assert tasks.num_given_up == 1
    num_asked = tasks.num_asked
    assert _Elsewhere(_trace).ends()
    assert tasks.num_asked == num_asked


def test_functions_are_forgotten_when_tasks_answer_again(
    tasks: _Tasks,
) -> None:
    traced: list[Any] = [_trace()]
    name = traced[0].name
    tasks.is_silent = True
    traced.clear()
    gc.collect()
    assert _is_registered(name)
    tasks.is_silent = False
    _trace()
    assert not _is_registered(name)


def test_functions_are_postponed_again_if_a_task_falls_silent(
    tasks: _Tasks,
) -> None:
    traced: list[Any] = [_trace(), _trace()]
    tasks.is_silent = True
    traced.clear()
    gc.collect()
    answers = [True, False]
    tasks.are_answering = lambda: answers.pop(0) if answers else True  # type: ignore[method-assign]
    kept = [_trace()]
    assert len(tensorflow_functions._roll_call.postponed) == 2
    kept.append(_trace())
    assert not tensorflow_functions._roll_call.postponed


def _is_registered(name: bytes) -> bool:
    return bool(tensorflow_execution.context.context().has_function(name))
