import dataclasses
import io
import json

import pytest
import rich.console

from tfps_plugin.planning import plan
from tfps_plugin.planning import rates
from tfps_plugin.planning import tables
from tfps_plugin.planning.costs import Costs
from tfps_plugin.planning.machines import Machines
from tfps_plugin.planning.memory import PsMemory
from tfps_plugin.planning.plan import Plan
from tfps_plugin.planning.work import PsWork
from tfps_plugin.planning.work import StepWork

_GIB = 1 << 30


def _plan(
    num_workers: int = 8,
    *,
    compute: float = 0.1,
    ps: tuple[PsWork, ...] = (PsWork(1000, 1000, 1000, 3, 10),) * 2,
    memory: int = _GIB,
    ps_memory_bytes: int | None = None,
    bits_per_second: float = 10e9,
    latency_seconds: float = 0.0,
) -> Plan:
    work = StepWork(dict(enumerate(ps)), compute, compute, 3, 100)
    return plan.make(
        "train.py",
        Machines(num_workers, len(ps), bits_per_second, latency_seconds),
        work,
        tuple(PsMemory(memory, memory) for _ in ps),
        Costs(),
        ("It is so.",),
        ps_memory_bytes=ps_memory_bytes,
    )


def test_workers_that_compute_may_be_more() -> None:
    made = _plan()
    assert made.forecast.bound == rates.WORKERS
    (sentence,) = made.suggestions
    assert "of them can be used before" in sentence


def test_busy_parameter_servers_should_be_more() -> None:
    made = _plan(64, compute=0.001, ps=(PsWork(0, 0, 10**9, 3, 10),) * 2)
    assert made.forecast.bound == rates.PS
    (sentence,) = made.suggestions
    assert "parameter servers in place of 2" in sentence


def test_a_hot_parameter_server_is_told_of() -> None:
    made = _plan(
        64, compute=0.001, ps=(PsWork(0, 0, 10**9, 3, 10), PsWork(0, 0, 0, 3))
    )
    assert "2.0 times the mean" in made.suggestions[0]


def test_many_lookups_should_be_one_layer() -> None:
    work = StepWork({0: PsWork(10, 10, 10, 3)}, 0.1, 0.1, 3, lookups=52)
    memory = (PsMemory(_GIB, 0),)
    made = plan.make("train.py", Machines(2, 1), work, memory, Costs())
    assert "52 lookups" in made.suggestions[0]


def test_a_slow_network_asks_for_fewer_bits() -> None:
    made = _plan(bits_per_second=1e6, ps=(PsWork(10**6, 10**6),) * 2)
    assert any("bfloat16" in each for each in made.suggestions)


def test_latency_asks_for_several_calls() -> None:
    made = _plan(compute=0.001, latency_seconds=1.0)
    assert made.forecast.bound == rates.LATENCY
    assert "max_closures_in_flight_per_worker" in made.suggestions[0]


def test_too_little_memory_asks_for_parameter_servers_with_enough() -> None:
    made = _plan(memory=8 * _GIB, ps_memory_bytes=10 * _GIB)
    # 32 GiB, of which each takes a bit less than 10.
    assert "at least 4 parameter servers" in made.suggestions[0]


def test_parameter_servers_without_variables_are_told_of() -> None:
    work = StepWork({0: PsWork(10, 10, 10, 3)}, 0.1, 0.1, 3)
    made = plan.make(
        "train.py",
        Machines(2, 3),
        work,
        (PsMemory(_GIB, 0), PsMemory(100, 0), PsMemory(0, 0)),
        Costs(),
    )
    assert made.suggestions[0].startswith("2 of 3 parameter servers")
    assert "3 shards" in made.suggestions[0]


def test_json_has_no_infinite_numbers() -> None:
    text = json.dumps(_plan().as_json(), allow_nan=False)
    found = json.loads(text)
    assert found["forecast"]["limits"][rates.LATENCY] is None
    assert found["memory"][0]["total"] > 2 * _GIB
    assert [each["num_workers"] for each in found["scale"]][-1] == 1000


def test_the_tables_show_every_part() -> None:
    console = rich.console.Console(file=io.StringIO(), width=100)
    tables.show(_plan(), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for expected in ("ps 1", "2.4 GiB", "the limit", "1,000", "It is so."):
        assert expected in text
    # A part that nothing takes.
    assert "standby" not in text


def test_the_tables_name_a_script_with_brackets() -> None:
    console = rich.console.Console(file=io.StringIO(), width=100)
    script = "runs[/2]/[b]train.py"
    tables.show(dataclasses.replace(_plan(), script=script), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"Plan of {script}: 8 workers" in text


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 * 2**40, "3.0 TiB"),
        (2**52, "4096.0 TiB"),
    ],
)
def test_sizes_for_people(num_bytes: int, expected: str) -> None:
    assert tables.size(num_bytes) == expected
