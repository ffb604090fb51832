import dataclasses
import json
import pathlib
import re
from typing import Any

from grafana_foundation_sdk.cog import encoder
from grafana_foundation_sdk.models import dashboard
from prometheus_client.parser import text_string_to_metric_families

from tfps_plugin.monitoring.state import prometheus
from tfps_plugin.monitoring.state.testing import example_state


def _samples(text: str) -> dict[tuple[str, str], float]:
    """Returns the samples that Prometheus would read, by name and labels."""
    return {
        (
            sample.name,
            ",".join(
                value
                for _, value in sorted(sample.labels.items(), reverse=True)
            ),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_reads_the_values_of_the_state() -> None:
    text, content_type = prometheus.exposition(example_state())
    assert content_type.startswith("text/plain")
    samples = _samples(text)
    assert samples["tfps_worker_steps_per_second", "worker,0"] == 120.5
    assert samples["tfps_worker_wait_share", "worker,0"] == 0.2
    assert samples["tfps_task_healthy", "worker,0"] == 1
    assert samples["tfps_task_healthy", "worker,1"] == 0
    assert samples["tfps_task_restarts_total", "worker,1"] == 2
    assert samples["tfps_worker_retries_total", "worker,1"] == 3
    assert samples["tfps_ps_table_rows", "ps,0"] == 50_000_000
    assert samples["tfps_task_memory_bytes", "ps,0"] == 12_000_000_000
    assert samples["tfps_steps_total", ""] == 24_200
    assert samples["tfps_metric", "auc"] == 0.771
    assert samples["tfps_job_epoch", ""] == 3
    assert samples["tfps_checkpoint_timestamp_seconds", ""] == 1_700_000_000
    assert samples["tfps_events_total", "workers_lost"] == 3


def test_what_is_unknown_is_left_out() -> None:
    samples = _samples(prometheus.exposition(example_state())[0])
    assert ("tfps_worker_steps_per_second", "worker,1") not in samples


def test_every_number_of_a_task_is_a_metric() -> None:
    state = example_state()
    told = set(_samples(prometheus.exposition(state)[0]).values())
    # Those that are told in another way, or say nothing by themselves.
    elsewhere = {
        "index",
        "process_id",
        "num_restarts",
        "num_retries",
        "num_variables",
    }
    for task in (state.workers[0], state.parameter_servers[0]):
        for field in dataclasses.fields(task):
            value = getattr(task, field.name)
            if isinstance(value, int | float) and field.name not in elsewhere:
                assert value in told, field.name


def test_a_loss_that_is_no_number_is_told_as_such() -> None:
    state = example_state()
    job = dataclasses.replace(state.job, metrics={"loss": float("nan")})
    text, _ = prometheus.exposition(dataclasses.replace(state, job=job))
    value = _samples(text)["tfps_metric", "loss"]
    assert value != value


_DASHBOARD = (
    pathlib.Path(__file__).parents[3] / "docs" / "grafana_dashboard.json"
)


def test_grafana_understands_the_dashboard() -> None:
    # The models are made from Grafana's own schema. A field that it does not
    # have would be missing afterwards.
    given = json.loads(_DASHBOARD.read_text())
    understood = dashboard.Dashboard.from_json(given)
    text = json.dumps(understood, cls=encoder.JSONEncoder)
    _require_part(given, json.loads(text), "dashboard")


def _require_part(given: Any, understood: Any, place: str) -> None:
    """Checks that a structure has all of another one, and maybe defaults."""
    if isinstance(given, dict):
        for name, each in given.items():
            assert name in understood, f"{place}.{name} is unknown"
            _require_part(each, understood[name], f"{place}.{name}")
    elif isinstance(given, list):
        assert len(given) == len(understood), place
        for number, (each, other) in enumerate(
            zip(given, understood, strict=True)
        ):
            _require_part(each, other, f"{place}[{number}]")
    else:
        assert given == understood, place


def test_grafana_asks_for_metrics_and_labels_that_there_are() -> None:
    samples = [
        sample
        for family in text_string_to_metric_families(
            prometheus.exposition(example_state())[0]
        )
        for sample in family.samples
    ]
    names = {sample.name for sample in samples}
    # Prometheus itself adds the instance.
    labels = {"instance"} | {
        label for sample in samples for label in sample.labels
    }
    panels = json.loads(_DASHBOARD.read_text())["panels"]
    assert len(panels) == 12
    for panel in panels:
        for target in panel["targets"]:
            expression = target["expr"]
            asked = re.findall(r"\btfps_\w+", expression)
            assert asked
            assert set(asked) <= names, expression
            assert set(re.findall(r"(\w+)=~?\"", expression)) <= labels
            shown = re.findall(r"{{(\w+)}}", target["legendFormat"])
            assert set(shown) <= labels, target["legendFormat"]
