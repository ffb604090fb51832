"""Tests of `tfps plan` against a real cluster, NumPy and simple arithmetic."""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import planned_model
import pytest

import tfps_plugin as tfps
from tfps_plugin.transport.explanation import Sent

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_SCRIPT = pathlib.Path(planned_model.__file__)
_ROWS = 5_000


def _plan(
    *arguments: str, script: pathlib.Path = _SCRIPT
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "tfps_plugin", "plan", "--json"),
            *("--ps=2", "--step-milliseconds=10", "--no-checkpoints"),
            *(str(script), *arguments),
        ],
        env={**os.environ, "PYTHONPATH": str(_SCRIPT.parents[1])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def _made(*arguments: str) -> dict[str, Any]:
    ended = _plan(*arguments)
    assert ended.returncode == 0, ended.stderr
    assert "must not have" not in ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def _ps_of(sent: Sent) -> int:
    place = sent.source or sent.destination
    return int(place.rpartition(":")[2])


def test_memory_messages_and_bytes_are_those_of_a_cluster(
    cluster: tfps.LocalCluster,
) -> None:
    plan = _made(str(_ROWS))
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, **planned_model.options()
    )
    with strategy.scope():
        model = planned_model.make(_ROWS)
    model.fit(planned_model.dataset(_ROWS), verbose=0)

    assert [
        each["variables"] + each["slots"] for each in plan["memory"]
    ] == list(strategy.bytes_per_ps)
    # Adam has two slots for each weight, and a few scalars.
    weights = sum(each["variables"] for each in plan["memory"])
    slots = sum(each["slots"] for each in plan["memory"])
    assert 2 * weights <= slots <= 2 * weights + 100

    (step,) = [
        body
        for body in strategy.explain(model, print_fn=None).bodies
        if body.name.endswith("While body")
    ]
    first = planned_model.ids(_ROWS)[: planned_model.BATCH]
    shards = [
        len(np.unique(first[(first >= start) & (first < start + _ROWS // 2)]))
        for start in (0, _ROWS // 2)
    ]
    on_ps = {
        int(shard.device.partition("task:")[2].partition("/")[0]): count
        for shard, count in zip(
            model.layers[0].embeddings.value.shards, shards, strict=True
        )
    }
    assert plan["work"]["rows"] == sum(shards)
    for ps in (0, 1):
        work = plan["work"]["ps"][str(ps)]
        sent = [each for each in step.sent if _ps_of(each) == ps]
        assert work["messages"] == sum(each.num_parcels for each in sent)
        assert (
            work["operations"]
            == dict(step.operations)[f"/job:ps/replica:0/task:{ps}"]
        )
        # Row numbers of 4 bytes go there; rows come, and their gradients go.
        rows = on_ps[ps] * planned_model.WIDTH * 4
        assert work["bytes_in"] == on_ps[ps] * 4 + rows + sum(
            each.num_bytes for each in sent if not each.source
        )
        assert work["bytes_out"] == rows + sum(
            each.num_bytes for each in sent if each.source
        )
    tfps.ClusterCoordinator(strategy).close()


def test_a_table_may_be_larger_than_this_machine() -> None:
    rows = 4_000_000_000
    plan = _made(str(rows))
    table = rows * planned_model.WIDTH * 4
    for each in plan["memory"]:
        # One of two shards, and two moments of Adam.
        assert each["variables"] == pytest.approx(table / 2, rel=1e-6)
        assert each["slots"] == pytest.approx(table, rel=1e-6)
    assert plan["forecast"]["steps_per_second"] > 0


def test_of_tables_on_disk_a_share_is_in_memory() -> None:
    rows, memory_rows = 4_000_000, 100_000
    plan = _made(str(rows), str(memory_rows))
    table = memory_rows * planned_model.WIDTH * 4
    dense = 4 * (planned_model.WIDTH * 32 + 32 + 32 + 1)
    assert sum(each["variables"] for each in plan["memory"]) == pytest.approx(
        table + dense, rel=0.01
    )
    assert sum(each["slots"] for each in plan["memory"]) == pytest.approx(
        2 * (table + dense), rel=0.01
    )


@pytest.mark.parametrize("program", ["print('hello')", "raise SystemExit(0)"])
def test_a_script_that_does_not_train_is_refused(
    program: str, tmp_path: pathlib.Path
) -> None:
    script = tmp_path / "nothing.py"
    script.write_text(program)
    ended = _plan(script=script)
    assert ended.returncode == 1
    assert "has ended without training" in ended.stderr
    assert ended.stdout == ""
