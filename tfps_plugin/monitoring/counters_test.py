"""Tests of the counters."""

import threading

from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.monitoring.counters import num_steps


def test_counts_from_zero() -> None:
    counters = Counters()
    assert counters.value("closures_done") == 0
    counters.increment("closures_done")
    counters.increment("closures_done", by=4)
    assert counters.value("closures_done") == 5


def test_a_counter_is_raised_and_never_lowered() -> None:
    counters = Counters()
    for value in (3, 7, 5):
        counters.raise_to("largest", value)
    assert counters.value("largest") == 7
    counters.raise_to("none", 0)
    assert counters.snapshot() == {"largest": 7, "none": 0}


def test_snapshot_is_a_copy_ordered_by_name() -> None:
    counters = Counters()
    counters.increment("b")
    counters.increment("a", by=2)
    snapshot = counters.snapshot()
    counters.increment("a")
    assert list(snapshot.items()) == [("a", 2), ("b", 1)]


def test_the_largest_value_is_kept() -> None:
    counters = Counters()
    counters.raise_to("largest_lead", 3)
    counters.raise_to("largest_lead", 2)
    assert counters.value("largest_lead") == 3
    counters.raise_to("nothing_seen", 0)
    assert "nothing_seen" in counters.snapshot()


def test_no_increment_is_lost() -> None:
    counters = Counters()

    def count() -> None:
        for _ in range(1000):
            counters.increment("a")

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert counters.value("a") == 8000


def test_callables_are_steps_if_nothing_else_was() -> None:
    counters = Counters()
    assert num_steps(counters) == 0
    counters.increment("closures_done", by=3)
    assert num_steps(counters) == 3
    # The same closures ran these steps.
    counters.increment("batches_predicted", by=20)
    assert num_steps(counters) == 20
    counters.increment("steps_done", by=4)
    counters.increment("functions_done", by=1)
    assert num_steps(counters) == 25
