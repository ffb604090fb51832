"""Tests that an ended strategy creates no variables."""

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster.chief import connection
from tfps_plugin.strategy.variable_creation import VariableCreator
from tfps_plugin.variables import testing


def test_a_strategy_that_was_superseded_makes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_present", connection._Present())
    made_on = connection.begin()
    creator = VariableCreator({0: testing.LOCAL_DEVICE}, None)
    assert creator.create(initial_value=1.0, name="before").numpy() == 1.0
    made_on.end("superseded by a newer strategy")
    with pytest.raises(errors.StrategySupersededError, match="superseded"):
        creator.create(initial_value=1.0, name="after")
