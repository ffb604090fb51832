import json

import pytest

from tfps_plugin.launcher import process_plan

_PORTS = (4000, 4001, 4002, 4003, 4004)


@pytest.fixture
def processes() -> dict[str, process_plan.ProcessPlan]:
    cluster = process_plan.plan_cluster(_PORTS, num_workers=2, num_ps=2)
    plans = process_plan.plan_processes(
        cluster, "train.py", ("--epochs", "3"), has_evaluator=True
    )
    return {process.name: process for process in plans}


def test_the_cluster_needs_a_port_for_each_task_and_the_chief() -> None:
    assert process_plan.num_ports(num_workers=2, num_ps=2) == len(_PORTS)


def test_every_task_has_a_process(
    processes: dict[str, process_plan.ProcessPlan],
) -> None:
    assert list(processes) == [
        *("ps 0", "ps 1", "worker 0", "worker 1", "chief", "evaluator")
    ]


def test_without_evaluator_there_is_none() -> None:
    cluster = process_plan.plan_cluster(_PORTS[:3], num_workers=1, num_ps=1)
    plans = process_plan.plan_processes(
        cluster, "train.py", (), has_evaluator=False
    )
    assert [process.name for process in plans] == ["ps 0", "worker 0", "chief"]


def test_a_cluster_can_be_a_part_of_another() -> None:
    cluster = process_plan.plan_cluster(_PORTS, num_workers=2, num_ps=2)
    assert process_plan.first_tasks(
        cluster, {"worker": 2, "ps": 1}
    ).as_dict() == {
        **cluster.as_dict(),
        "ps": ["127.0.0.1:4003"],
    }


def test_a_task_that_is_added_has_the_process_of_a_first_one(
    processes: dict[str, process_plan.ProcessPlan],
) -> None:
    cluster = process_plan.plan_cluster(_PORTS, num_workers=2, num_ps=2)
    for task in cluster.serving_tasks:
        assert process_plan.plan_task(cluster, task) == processes[str(task)]


def test_each_process_is_told_who_it_is(
    processes: dict[str, process_plan.ProcessPlan],
) -> None:
    for name, process in processes.items():
        job, _, index = name.partition(" ")
        config = json.loads(process.environ["TF_CONFIG"])
        assert config["task"] == {"type": job, "index": int(index or 0)}
        assert config["cluster"]["chief"] == ["127.0.0.1:4000"]
        assert config["cluster"]["worker"] == [
            "127.0.0.1:4001",
            "127.0.0.1:4002",
        ]
        assert config["cluster"]["ps"] == ["127.0.0.1:4003", "127.0.0.1:4004"]


def test_programs_run_the_script_and_tasks_the_server(
    processes: dict[str, process_plan.ProcessPlan],
) -> None:
    for name, process in processes.items():
        expected = (
            ("train.py", "--epochs", "3")
            if name in process_plan.PROGRAMS
            else (
                "-m",
                "tfps_plugin.cluster.serving.task_server",
                "--drained-exit-code=0",
            )
        )
        assert process.arguments == expected


@pytest.mark.parametrize(
    ("unbuffered", "expected"),
    [(True, ["python", "-u", "x.py"]), (False, ["python", "x.py"])],
)
def test_command_line(unbuffered: bool, expected: list[str]) -> None:
    process = process_plan.ProcessPlan("chief", ("x.py",), {})
    assert expected == process_plan.command_line(
        process, unbuffered=unbuffered, executable="python"
    )
