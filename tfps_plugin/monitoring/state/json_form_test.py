import dataclasses
import json
import math

import pytest

from tfps_plugin import errors
from tfps_plugin.monitoring.state import cluster_state
from tfps_plugin.monitoring.state import json_form
from tfps_plugin.monitoring.state.testing import example_state


def test_a_state_survives() -> None:
    state = example_state()
    assert json_form.decode(json_form.encode(state)) == state


def test_an_empty_state_survives() -> None:
    chief = cluster_state.TaskState(
        job="chief", index=0, address="", health=cluster_state.HEALTHY
    )
    state = cluster_state.ClusterState(
        time=1.0,
        version="1",
        program="train.py",
        consistency="Async()",
        chief=chief,
    )
    assert json_form.decode(json_form.encode(state)) == state


def test_a_loss_that_is_no_number_survives() -> None:
    state = example_state()
    job = dataclasses.replace(
        state.job, metrics={"loss": math.nan, "mae": math.inf}
    )
    state = dataclasses.replace(state, job=job)
    text = json_form.encode(state)
    assert json.loads(text)["job"]["metrics"] == {"loss": "nan", "mae": "inf"}
    metrics = json_form.decode(text).job.metrics
    assert math.isnan(metrics["loss"])
    assert metrics["mae"] == math.inf


def test_names_are_those_of_the_attributes() -> None:
    fields = json.loads(json_form.encode(example_state()))
    assert set(fields) == {
        field.name for field in dataclasses.fields(cluster_state.ClusterState)
    }
    assert fields["workers"][0]["steps_per_second"] == 120.5


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"time": 1}', b"<html>"])
def test_anything_else_is_refused(text: str | bytes) -> None:
    with pytest.raises(errors.InternalError, match="same release"):
        json_form.decode(text)
