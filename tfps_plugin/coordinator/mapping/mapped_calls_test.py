"""Tests of calls with many items, on a cluster without processes."""

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.coordinator.closures.closure import ClosureState
from tfps_plugin.coordinator.closures.remote_value import RemoteValue
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.mapping import mapped_calls
from tfps_plugin.coordinator.mapping.mapped_calls import MappedCalls
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.coordinator.testing import FakeStrategy

_SECONDS = 30.0


@pytest.fixture
def coordinator() -> Iterator[ClusterCoordinator]:
    made = ClusterCoordinator(FakeStrategy(FakeSession(2, 1)))
    yield made
    made.close()


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("most", [1, 3, None])
def test_each_item_has_one_result(
    coordinator: ClusterCoordinator, ordered: bool, most: int | None
) -> None:
    found = list(
        coordinator.map(
            lambda n: n * n, range(50), ordered=ordered, max_in_flight=most
        )
    )
    expected = [n * n for n in range(50)]
    assert (found if ordered else sorted(found)) == expected


def test_slow_items_hold_up_ordered_results_alone(
    coordinator: ClusterCoordinator,
) -> None:
    may_end = threading.Event()

    def run(n: int) -> int:
        if n == 0:
            assert may_end.wait(_SECONDS)
        return n

    results = coordinator.map(run, range(6), ordered=False)
    assert sorted(itertools.islice(results, 5)) == [1, 2, 3, 4, 5]
    may_end.set()
    assert list(results) == [0]


def test_no_more_items_are_read_than_are_in_flight(
    coordinator: ClusterCoordinator,
) -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for n in itertools.count():
            read.append(n)
            yield n

    results = coordinator.map(lambda n: n, items(), max_in_flight=3)
    assert read == [0, 1, 2]
    assert [next(results) for _ in range(4)] == [0, 1, 2, 3]
    assert len(read) == 7


@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_is_that_of_the_function_and_ends_the_calls(
    coordinator: ClusterCoordinator, ordered: bool
) -> None:
    class BadItemError(Exception):
        pass

    def run(n: int) -> int:
        if n == 7:
            raise BadItemError(n)
        return n

    with pytest.raises(BadItemError, match="7"):
        list(coordinator.map(run, range(20), ordered=ordered))
    assert list(coordinator.map(run, range(5))) == [0, 1, 2, 3, 4]


def test_an_error_of_the_items_arrives(
    coordinator: ClusterCoordinator,
) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        list(coordinator.map(lambda n: n, items(), max_in_flight=1))


def test_numbers_and_arrays_are_no_constants_of_a_trace(
    coordinator: ClusterCoordinator,
) -> None:
    num_traces = []

    @tf.function(reduce_retracing=True)
    def total(item: dict[str, Any]) -> tf.Tensor:
        num_traces.append(1)
        return tf.reduce_sum(item["x"]) + item["n"]

    items = [{"x": np.ones([n + 1]), "n": np.float64(n)} for n in range(6)]
    found = list(coordinator.map(total, items))
    assert found == [2.0 * n + 1 for n in range(6)]
    # The first size, another one, and then any.
    assert len(num_traces) <= 3


def test_a_dataset_gives_items(coordinator: ClusterCoordinator) -> None:
    dataset = tf.data.Dataset.range(7).batch(3)
    sums = coordinator.map(lambda batch: tf.reduce_sum(batch), dataset)
    assert [int(each) for each in sums] == [3, 12, 6]
    # A mean of means: the last batch has one example.
    mean = coordinator.reduce(
        lambda batch: tf.reduce_mean(tf.cast(batch, tf.float64)),
        dataset,
        "mean",
    )
    assert mean == 3.0


def test_weights_of_ones_own(coordinator: ClusterCoordinator) -> None:
    assert coordinator.reduce(lambda n: n, [1.0, 2.0, 6.0]) == 9.0
    mean = coordinator.reduce(
        lambda n: n, [1.0, 2.0, 6.0], "mean", weight=lambda n: n == 6.0
    )
    assert mean == 6.0
    with pytest.raises(ValueError, match=r'weight= with op="mean"'):
        coordinator.reduce(lambda n: n, [1.0], weight=lambda n: 1.0)


def test_an_item_without_examples_has_no_weight(
    coordinator: ClusterCoordinator,
) -> None:
    with pytest.raises(ValueError, match=r"of no rows.*weight="):
        coordinator.reduce(lambda n: n, [1.0, 2.0], "mean")


@pytest.mark.parametrize(
    ("item", "size"),
    [
        (np.zeros([3, 2]), 3),
        ({"x": tf.zeros([4]), "rate": tf.constant(1.0)}, 4),
        (tf.ragged.constant([[1], [], [2, 3]]), 3),
        (tf.sparse.from_dense([[1, 0], [0, 1]]), 2),
    ],
)
def test_the_size_of_an_item(item: Any, size: int) -> None:
    assert mapped_calls.size_of(item) == size


def test_parts_of_different_sizes_have_no_size() -> None:
    with pytest.raises(ValueError, match=r"\[2, 3\] rows"):
        mapped_calls.size_of((np.zeros(2), np.zeros(3)))


class _Losing:
    """Loses the result of an item once, after it was completed."""

    num_lanes = 1

    def __init__(self, lost: int) -> None:
        self._lost = {lost}
        self.scheduled: list[int] = []

    def schedule(self, fn: Any, args: Any) -> RemoteValue:
        (n,) = args
        self.scheduled.append(n)
        value = _Lost() if n in self._lost else RemoteValue()
        self._lost.discard(n)
        value.set_outcome(ClosureState.DONE, fn(n), 0)
        return value


class _Lost(RemoteValue):
    __slots__ = ()

    def fetch(self, timeout_seconds: float | None = None) -> Any:
        raise errors.WorkerLostError("gone")


@pytest.mark.parametrize("ordered", [True, False])
def test_a_result_that_is_lost_is_made_again(ordered: bool) -> None:
    scheduler = _Losing(2)
    found = MappedCalls(scheduler, lambda n: 10 * n, range(5), ordered=ordered)
    results = list(found)
    expected = [(n, 10 * n) for n in range(5)]
    assert (results if ordered else sorted(results)) == expected
    assert sorted(scheduler.scheduled) == [0, 1, 2, 2, 3, 4]


def test_a_progress_bar_counts_items(
    coordinator: ClusterCoordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    list(coordinator.map(lambda n: n, range(8), verbose=1))
    assert "8/8" in capsys.readouterr().out
    list(coordinator.map(lambda n: n, iter(range(8)), verbose=1))
    assert "8/8" in capsys.readouterr().out
    list(coordinator.map(lambda n: n, range(8)))
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"fn": 3}, TypeError, r"fn=3\. Pass the function itself"),
        ({"items": 3}, TypeError, r"items=3\. Put a single item into a list"),
        ({"max_in_flight": 0}, ValueError, r"max_in_flight=0\. Leave it out"),
        ({"max_in_flight": 1.5}, ValueError, r"max_in_flight=1\.5"),
        ({"max_in_flight": True}, ValueError, "max_in_flight=True"),
        ({"verbose": 2}, ValueError, r"verbose=2\. Pass verbose=1"),
    ],
)
def test_arguments_without_meaning(
    coordinator: ClusterCoordinator, change: Any, error: Any, message: str
) -> None:
    arguments = {"fn": lambda n: n, "items": [1]} | change
    message = rf"coordinator\.map\(\) and reduce\(\).*Received: {message}"
    for method in (coordinator.map, coordinator.reduce):
        with pytest.raises(error, match=message):
            method(**arguments)


@pytest.mark.parametrize("method", ["map", "reduce"])
def test_calls_inside_of_a_scheduled_function_are_refused(
    coordinator: ClusterCoordinator, method: str
) -> None:
    def run() -> None:
        getattr(coordinator, method)(lambda n: n, [1])

    with pytest.raises(
        errors.UnsupportedError, match=rf"coordinator\.{method}\(\)"
    ):
        coordinator.fetch(coordinator.schedule(run))
