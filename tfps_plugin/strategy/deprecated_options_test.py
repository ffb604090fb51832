"""Tests of the names that options had before they were in groups."""

import re
from typing import Any

import pytest

import tfps_plugin as tfps
from tfps_plugin.strategy import deprecated_options
from tfps_plugin.strategy.options import StrategyOptions

# Keyword -> a value, and the spelling that its warning names.
_OLD = {
    "start_timeout_seconds": (
        5.0,
        "startup=tfps.StartupOptions(timeout_seconds=5.0)",
    ),
    "min_workers": (2, "startup=tfps.StartupOptions(min_workers=2)"),
    "max_closures_in_flight_per_worker": (
        3,
        "scheduling=tfps.SchedulingOptions("
        "max_closures_in_flight_per_worker=3)",
    ),
    "prefetch_embeddings": (
        True,
        "scheduling=tfps.SchedulingOptions(prefetch_embeddings=True)",
    ),
    "steps_per_closure": (
        7,
        "scheduling=tfps.SchedulingOptions(steps_per_closure=7)",
    ),
    "communication_fusion": (
        False,
        "communication=tfps.CommunicationOptions(fusion=False)",
    ),
    "wire_dtype": (
        "int8",
        "communication=tfps.CommunicationOptions(wire_dtype='int8')",
    ),
    "in_place_recovery": (
        True,
        "recovery=tfps.RecoveryOptions(in_place=True)",
    ),
    "recovery": (
        "consistent",
        "recovery=tfps.RecoveryOptions(restore='consistent')",
    ),
    "ps_recovery_timeout_seconds": (
        9.0,
        "recovery=tfps.RecoveryOptions(timeout_seconds=9.0)",
    ),
    "replicate": ("ps", "recovery=tfps.RecoveryOptions(replicate='ps')"),
    "replicate_every_steps": (
        4,
        "recovery=tfps.RecoveryOptions(replicate_every_steps=4)",
    ),
}


def _merged(groups: dict[str, Any], **keywords: Any) -> StrategyOptions:
    return deprecated_options.merged(groups, keywords, stacklevel=1)


def test_every_old_name_is_tested() -> None:
    assert set(_OLD) == set(deprecated_options._NEW_NAMES)


@pytest.mark.parametrize("name", _OLD)
def test_an_old_keyword_is_the_new_option_and_its_warning_says_so(
    name: str,
) -> None:
    value, spelling = _OLD[name]
    with pytest.warns(FutureWarning, match=re.escape(spelling)) as caught:
        merged = _merged({}, **{name: value})
    assert [each.filename for each in caught] == [__file__]
    (group, _, new) = spelling.partition("=")
    expected = eval(new, {"tfps": tfps})
    assert merged == StrategyOptions(**{group: expected})
    assert merged != StrategyOptions() or value is True


def test_old_keywords_of_a_group_go_together() -> None:
    with pytest.warns(FutureWarning) as caught:
        merged = _merged(
            {"recovery": "consistent", "startup": tfps.StartupOptions()},
            ps_recovery_timeout_seconds=9.0,
            wire_dtype="float16",
        )
    assert merged == StrategyOptions(
        recovery=tfps.RecoveryOptions(
            restore="consistent", timeout_seconds=9.0
        ),
        communication=tfps.CommunicationOptions(wire_dtype="float16"),
    )
    assert len(caught) == 3


def test_groups_need_no_warning() -> None:
    startup = tfps.StartupOptions(min_workers=1)
    assert _merged({"startup": startup, "recovery": None}) == StrategyOptions(
        startup=startup
    )


def test_both_forms_of_a_group_are_refused() -> None:
    with pytest.raises(ValueError, match="min_workers is the deprecated form"):
        _merged({"startup": tfps.StartupOptions()}, min_workers=1)


def test_a_value_without_meaning_is_refused_in_the_old_form_too() -> None:
    with (
        pytest.warns(FutureWarning),
        pytest.raises(ValueError, match="Received: min_workers=0"),
    ):
        _merged({}, min_workers=0)


def test_an_unknown_keyword_is_named_beside_those_that_are_known() -> None:
    with pytest.raises(TypeError, match=r"argument 'min_worker'.* startup, "):
        _merged({}, min_worker=1)


def test_attributes_are_read_from_and_written_to_their_group() -> None:
    class Strategy(deprecated_options.DeprecatedAttributes):
        communication = tfps.CommunicationOptions(wire_dtype="int8")
        scheduling = tfps.SchedulingOptions(prefetch_embeddings=False)

    strategy = Strategy()
    with pytest.warns(FutureWarning, match="Use strategy.communication.fusion"):
        assert strategy.communication_fusion is True
    with pytest.warns(FutureWarning, match="scheduling.closures_in_flight"):
        assert strategy.max_closures_in_flight_per_worker == 1
    with pytest.warns(
        FutureWarning, match=r"replace\(.*, fusion=False\)"
    ) as caught:
        strategy.communication_fusion = False
    assert [each.filename for each in caught] == [__file__]
    assert strategy.communication == tfps.CommunicationOptions(
        fusion=False, wire_dtype="int8"
    )
