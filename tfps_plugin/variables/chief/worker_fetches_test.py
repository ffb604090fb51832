from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin._compat.runtime import tensorflow_cluster
from tfps_plugin._compat.runtime import tensorflow_fetch
from tfps_plugin.variables.chief import worker_fetches
from tfps_plugin.variables.chief.worker_fetches import WorkerFetches

_TENSORS = [
    tf.constant([[1.0, 2.0]]),
    tf.constant(b"text"),
    tf.constant(3),
    tf.zeros([0], tf.int64),
    tf.constant([True]),
]


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> WorkerFetches:
    """Returns fetches to which every tensor is on another task."""
    monkeypatch.setattr(
        tensorflow_fetch.FetchFunctions, "is_here", lambda self, device: False
    )
    return WorkerFetches()


def _require_values(values: list[object]) -> None:
    for value, tensor in zip(values, _TENSORS, strict=True):
        np.testing.assert_array_equal(value, tensor.numpy())
        assert type(value) is type(tensor.numpy())


def test_values_of_other_tasks_arrive(fetches: WorkerFetches) -> None:
    _require_values(fetches.arrays(_TENSORS))


def test_values_of_the_chief_take_no_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        tensorflow_fetch.FetchFunctions,
        "fetch",
        lambda *arguments: pytest.fail("It was called."),
    )
    _require_values(worker_fetches.arrays(_TENSORS))


def test_all_values_arrive_by_one_call(
    fetches: WorkerFetches, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    fetch = tensorflow_fetch.FetchFunctions.fetch

    def counted(*arguments: Any) -> list[Any]:
        calls.append(arguments)
        return fetch(*arguments)

    monkeypatch.setattr(tensorflow_fetch.FetchFunctions, "fetch", counted)
    fetches.arrays(_TENSORS)
    assert len(calls) == 1


def test_shapes_share_a_trace(fetches: WorkerFetches) -> None:
    for size in range(3):
        fetches.arrays([tf.zeros([size])])
        fetches.arrays([tf.zeros([1] * size)])
    assert fetches._functions.of_dtypes.cache_info().currsize == 1


def test_traces_are_bounded(
    fetches: WorkerFetches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorflow_fetch, "_MOST_TRACES", 2)
    for number in range(1, 5):
        fetches.arrays([tf.zeros([])] * number)
    assert fetches._functions.of_dtypes.cache_info().currsize == 2


def test_the_first_call_after_a_change_is_exclusive(
    fetches: WorkerFetches, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []
    turn = fetches._calls.turn

    def noted(*, exclusive: bool) -> object:
        found.append(exclusive)
        return turn(exclusive=exclusive)

    monkeypatch.setattr(fetches._calls, "turn", noted)
    for updates in (0, 0, 2, 2):
        monkeypatch.setattr(
            tensorflow_cluster, "num_updates", lambda now=updates: now
        )
        fetches.arrays([tf.zeros([])])
    assert found == [True, False, True, False]


def test_a_thread_that_was_given_up_holds_up_nobody(
    fetches: WorkerFetches, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up: list[int] = []
    monkeypatch.setattr(fetches._calls, "give_up", given_up.append)
    fetches.give_up(7)
    assert given_up == [7]


def test_a_resource_has_no_value_to_fetch(fetches: WorkerFetches) -> None:
    handle = tf.Variable(1.0).handle
    with pytest.raises((tf.errors.OpError, NotImplementedError, ValueError)):
        fetches.arrays([handle])
