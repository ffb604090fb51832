import re

import pytest

from tfps_plugin.launcher.watching import profiling
from tfps_plugin.monitoring.state.testing import example_state


def test_tasks_are_chosen_by_name() -> None:
    chosen = profiling.choose(example_state(), ["worker:0", "ps:0"])
    assert [task.address for task in chosen] == [
        "10.0.0.2:2222",
        "10.0.0.4:2222",
    ]


@pytest.mark.parametrize("name", ["worker:7", "chief:0", "worker", ""])
def test_a_task_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(
        ValueError,
        match=f"worker:0, worker:1, ps:0. Received: {re.escape(name)}$",
    ):
        profiling.choose(example_state(), [name])


def test_a_lost_task_cannot_be_traced() -> None:
    with pytest.raises(ValueError, match="is lost: Connection refused"):
        profiling.choose(example_state(), ["worker:1"])
