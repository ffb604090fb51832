"""Tests that the options of a strategy are checked when they are created."""

from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.strategy import options
from tfps_plugin.strategy.options import CommunicationOptions
from tfps_plugin.strategy.options import RecoveryOptions
from tfps_plugin.strategy.options import SchedulingOptions
from tfps_plugin.strategy.options import StartupOptions
from tfps_plugin.strategy.options import StrategyOptions


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (StartupOptions, "min_workers"),
        (SchedulingOptions, "max_closures_in_flight_per_worker"),
        (SchedulingOptions, "steps_per_closure"),
        (RecoveryOptions, "replicate_every_steps"),
    ],
)
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "2"])
def test_numbers_are_positive_integers(
    group: Any, name: str, value: Any
) -> None:
    with pytest.raises(ValueError, match=f"Received: {name}={value!r}"):
        group(**{name: value})
    assert getattr(group(**{name: 3}), name) == 3


@pytest.mark.parametrize("value", [0, 1, -0.5, 2, True, "0.5", float("nan")])
def test_the_fraction_of_slow_workers_is_below_one(value: Any) -> None:
    with pytest.raises(ValueError, match=f"slow_worker_fraction={value!r}"):
        SchedulingOptions(slow_worker_fraction=value)
    for fraction in (0.25, None):
        options_of = SchedulingOptions(slow_worker_fraction=fraction)
        assert options_of.slow_worker_fraction == fraction


@pytest.mark.parametrize("group", [StartupOptions, RecoveryOptions])
@pytest.mark.parametrize("value", [-1.0, float("nan"), "60", None, True])
def test_timeouts_are_seconds(group: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=f"timeout_seconds={value!r}"):
        group(timeout_seconds=value)
    for seconds in (0, 60, 0.5, float("inf")):
        assert group(timeout_seconds=seconds).timeout_seconds == seconds


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (CommunicationOptions, "fusion"),
        (RecoveryOptions, "in_place"),
        (SchedulingOptions, "prefetch_embeddings"),
    ],
)
def test_switches_are_on_or_off(group: Any, name: str) -> None:
    for value in ("two", 2):
        with pytest.raises(ValueError, match=f"Received: {name}={value!r}"):
            group(**{name: value})
    for switch in (True, False):
        assert getattr(group(**{name: switch}), name) is switch


@pytest.mark.parametrize(
    ("prefetch", "calls", "in_flight"),
    [
        (None, None, None),
        (None, 1, 1),
        (None, 3, 3),
        (True, None, None),
        (True, 2, 2),
        (False, None, 1),
        (False, 1, 1),
    ],
)
def test_rows_are_fetched_ahead_by_two_calls_at_a_time(
    prefetch: bool | None, calls: int | None, in_flight: int | None
) -> None:
    scheduling = SchedulingOptions(
        prefetch_embeddings=prefetch, max_closures_in_flight_per_worker=calls
    )
    assert scheduling.closures_in_flight == in_flight


@pytest.mark.parametrize(("prefetch", "calls"), [(True, 1), (False, 2)])
def test_one_call_at_a_time_does_not_prefetch(
    prefetch: bool, calls: int
) -> None:
    with pytest.raises(ValueError, match=f"prefetch_embeddings={prefetch}"):
        SchedulingOptions(
            prefetch_embeddings=prefetch,
            max_closures_in_flight_per_worker=calls,
        )


def test_dtypes_that_are_not_smaller_are_refused() -> None:
    for dtype in ("int7", "float32"):
        with pytest.raises(ValueError, match=f"wire_dtype='{dtype}'"):
            CommunicationOptions(wire_dtype=dtype)
    for choice in (None, "bfloat16", "float16", "int8", lambda path: None):
        assert CommunicationOptions(wire_dtype=choice).wire_dtype is choice


@pytest.mark.parametrize(
    "recovery",
    [
        {"restore": "all"},
        {"replicate": "worker"},
        {"replicate": "ps", "in_place": False},
        {"replicate": "ps", "restore": "consistent"},
    ],
)
def test_recovery_without_meaning_is_refused(recovery: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Received: "):
        RecoveryOptions(**recovery)


def test_a_group_of_another_class_is_refused() -> None:
    group: Any = SchedulingOptions()
    with pytest.raises(TypeError, match=r"startup must be a tfps\.StartupOp"):
        StrategyOptions(startup=group)


def test_a_cluster_has_to_be_large_enough() -> None:
    cluster = ClusterSpec(("w0:1", "w1:1"), ("ps0:1",))
    StrategyOptions(startup=StartupOptions(min_workers=2)).require_cluster(
        cluster
    )
    with pytest.raises(ValueError, match="Received: min_workers=3"):
        StrategyOptions(startup=StartupOptions(min_workers=3)).require_cluster(
            cluster
        )
    replicated = StrategyOptions(recovery=RecoveryOptions(replicate="ps"))
    with pytest.raises(errors.ClusterConfigurationError, match="two or more"):
        replicated.require_cluster(cluster)
    replicated.require_cluster(ClusterSpec(("w0:1",), ("ps0:1", "ps1:1")))


def test_an_unknown_form_of_sparse_updates_is_refused() -> None:
    with pytest.raises(ValueError, match="sparse_update='eager'"):
        options.require_sparse_update("eager")
    options.require_sparse_update("caught_up")
