"""Tests of the end of `fit`, without a cluster."""

import types

import pytest

from tfps_plugin.training.patches import trainer_methods


class _Coordinator:
    """Coordinator whose workers are busy until a second Ctrl-C."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel_queued(self) -> None:
        self.is_cancelled = True

    def join(self) -> None:
        raise KeyboardInterrupt

    def wait_until_quiet(self, timeout_seconds: float) -> None:
        raise KeyboardInterrupt


def _fit_that_raises(error: BaseException, coordinator: _Coordinator) -> None:
    model = types.SimpleNamespace(
        _distribute_strategy=types.SimpleNamespace(
            _cluster_coordinator=coordinator
        )
    )
    call = types.SimpleNamespace(close=lambda: None)
    with trainer_methods._tidy_after_error(model, call):  # type: ignore[arg-type]
        raise error


def test_a_second_interrupt_ends_the_wait_and_leaves_one_traceback() -> None:
    coordinator = _Coordinator()
    with pytest.raises(KeyboardInterrupt) as caught:
        _fit_that_raises(KeyboardInterrupt("first"), coordinator)
    assert caught.value.args == ("first",)
    assert caught.value.__context__ is None
    assert coordinator.is_cancelled


def test_an_interrupt_after_an_error_does_not_hide_it() -> None:
    error = ValueError("of the user")
    with pytest.raises(KeyboardInterrupt) as caught:
        _fit_that_raises(error, _Coordinator())
    assert caught.value.__context__ is error
