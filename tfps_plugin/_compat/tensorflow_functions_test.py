import threading
from collections.abc import Callable

import pytest
import tensorflow as tf

from tfps_plugin._compat import patch_table
from tfps_plugin._compat import patches
from tfps_plugin._compat import tensorflow_functions

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
