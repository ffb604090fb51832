"""Tests of the options that a consistency refuses, by name."""

from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.strategy import consistency
from tfps_plugin.strategy.consistency import Async
from tfps_plugin.strategy.consistency import BoundedStaleness
from tfps_plugin.strategy.consistency import Consistency
from tfps_plugin.strategy.consistency import Sync
from tfps_plugin.strategy.options import RecoveryOptions
from tfps_plugin.strategy.options import SchedulingOptions
from tfps_plugin.strategy.options import StrategyOptions


def _options(**parts: Any) -> StrategyOptions:
    return StrategyOptions(**parts)


def test_the_default_is_asynchronous() -> None:
    options = _options()
    assert consistency.checked(None, options, "auto") == (Async(), options)


def test_asynchronous_training_changes_no_option() -> None:
    options = _options(
        scheduling=SchedulingOptions(max_closures_in_flight_per_worker=3)
    )
    checked, same = consistency.checked(Async(), options, "caught_up")
    assert checked == Async()
    assert same is options


@pytest.mark.parametrize("given", [1, None, "yes", 0.5])
def test_scaling_is_on_or_off(given: Any) -> None:
    with pytest.raises(TypeError, match=r"Received: staleness_scaling="):
        Async(staleness_scaling=given)


@pytest.mark.parametrize("given", [0, -1, 2.0, True, "4", None])
def test_what_is_no_number_of_local_steps_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"Received: local_steps="):
        Async(local_steps=given)


def test_one_local_step_is_asynchronous_training() -> None:
    assert Async(local_steps=1) == Async()


@pytest.mark.parametrize(
    ("given", "local_steps", "at_once"),
    [
        (Async(), 1, True),
        (Async(staleness_scaling=True), 1, True),
        (Async(local_steps=4), 4, False),
        (Sync(), 1, False),
        (BoundedStaleness(2), 1, False),
    ],
    ids=str,
)
def test_steps_update_at_once_or_wait(
    given: Any, local_steps: int, at_once: bool
) -> None:
    assert consistency.local_steps_of(given) == local_steps
    assert consistency.updates_at_once(given) == at_once


def test_local_steps_do_not_go_with_rows_that_catch_up() -> None:
    local = Async(local_steps=4)
    for form in ("auto", "lazy", "exact"):
        assert consistency.checked(local, _options(), form)[0] is local
    with pytest.raises(
        errors.UnsupportedError, match=r"local_steps=4.*'caught_up'"
    ):
        consistency.checked(local, _options(), "caught_up")
    consistency.checked(Async(local_steps=1), _options(), "caught_up")


@pytest.mark.parametrize("number", [1, 2, 6])
def test_calls_make_whole_rounds(number: int) -> None:
    def options(number: int) -> StrategyOptions:
        return _options(scheduling=SchedulingOptions(steps_per_closure=number))

    local = Async(local_steps=4)
    with pytest.raises(
        ValueError, match=rf"multiple of 4 as steps_per_closure.*: {number},"
    ):
        consistency.checked(local, options(number), "auto")
    consistency.checked(local, options(8), "auto")
    consistency.checked(Async(), options(number), "auto")
    consistency.require_whole_rounds(Sync(), "steps", number)


def test_scaling_does_not_know_rows_that_catch_up() -> None:
    scaling = Async(staleness_scaling=True)
    for form in ("auto", "lazy", "exact"):
        assert consistency.checked(scaling, _options(), form)[0] is scaling
    with pytest.raises(
        errors.UnsupportedError, match=r"staleness_scaling=True.*'caught_up'"
    ):
        consistency.checked(scaling, _options(), "caught_up")


def test_synchronous_training_restores_all_variables_together() -> None:
    before = _options()
    checked, after = consistency.checked(Sync(), before, "exact")
    assert checked == Sync()
    assert after.recovery.restore == "consistent"
    assert after.scheduling == before.scheduling
    assert after.communication == before.communication


@pytest.mark.parametrize("given", ["sync", Sync, 1, True])
def test_what_is_no_consistency_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"tfps\.Sync\(\).*Received: consist"):
        consistency.checked(given, _options(), "auto")


@pytest.mark.parametrize("number", [-1, 1.0, True, "1", None])
def test_what_is_no_number_of_workers_is_refused(number: Any) -> None:
    with pytest.raises(ValueError, match=r"Received: backup_workers="):
        Sync(backup_workers=number)


@pytest.mark.parametrize("number", [-1, 1.0, True, "1", None])
def test_what_is_no_number_of_steps_is_refused(number: Any) -> None:
    with pytest.raises(ValueError, match=r"Received: max_staleness="):
        BoundedStaleness(max_staleness=number)


def test_bounded_staleness_changes_no_option() -> None:
    options = _options(
        recovery=RecoveryOptions(replicate="ps", restore="lost"),
    )
    checked, same = consistency.checked(
        BoundedStaleness(0), options, "caught_up"
    )
    assert checked == BoundedStaleness(max_staleness=0)
    assert same is options


@pytest.mark.parametrize("number", [3, 4])
def test_backup_workers_for_nobody_are_refused(number: int) -> None:
    with pytest.raises(
        ValueError, match=rf"3 workers of the.*backup_workers={number}\."
    ):
        consistency.require_workers(Sync(number), 3)


@pytest.mark.parametrize("one", [Async(), Sync(), Sync(2)])
def test_other_workers_do_not_limit_a_consistency(one: Any) -> None:
    assert consistency.checked(one, _options(), "auto")[0] == one
    consistency.require_workers(one, 3)


@pytest.mark.parametrize(
    "scheduling",
    [
        {"max_closures_in_flight_per_worker": 2},
        {"prefetch_embeddings": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("waits", [Sync(), BoundedStaleness(3)], ids=str)
def test_steps_in_flight_are_refused(
    scheduling: dict[str, Any], waits: Consistency
) -> None:
    (name,) = scheduling
    with pytest.raises(ValueError, match=rf"{name}.*Leave them out"):
        consistency.checked(
            waits,
            _options(scheduling=SchedulingOptions(**scheduling)),
            "auto",
        )


@pytest.mark.parametrize(
    "scheduling",
    [
        {"max_closures_in_flight_per_worker": 1},
        {"prefetch_embeddings": False},
    ],
    ids=str,
)
def test_one_step_in_flight_is_what_it_has_anyway(
    scheduling: dict[str, Any],
) -> None:
    options = _options(scheduling=SchedulingOptions(**scheduling))
    checked, _ = consistency.checked(Sync(), options, "auto")
    assert checked == Sync()


def test_copies_of_a_ps_are_refused() -> None:
    with pytest.raises(ValueError, match=r"replicate=None.*BackupAndRestore"):
        consistency.checked(
            Sync(),
            _options(recovery=RecoveryOptions(replicate="ps")),
            "auto",
        )


def test_rows_that_catch_up_are_refused() -> None:
    with pytest.raises(
        errors.UnsupportedError, match=r'"caught_up".*Expected "exact"'
    ):
        consistency.checked(Sync(), _options(), "caught_up")
