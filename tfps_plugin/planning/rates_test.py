import dataclasses
import itertools
import math

import hypothesis
import pytest
from hypothesis import strategies as st

from tfps_plugin.planning import rates
from tfps_plugin.planning.costs import Costs
from tfps_plugin.planning.machines import Machines
from tfps_plugin.planning.work import PsWork
from tfps_plugin.planning.work import StepWork

_FREE = Costs(**{field.name: 0.0 for field in dataclasses.fields(Costs)})
_SECONDS = st.floats(1e-6, 10.0)


def _work(
    *, compute: float = 0.0, waves: int = 0, ps: dict[int, PsWork] | None = None
) -> StepWork:
    return StepWork(ps or {}, compute, compute, waves)


def test_one_customer_waits_for_nobody() -> None:
    assert rates.throughput([1.0, 2.0], 1.0, 1) == 1 / 4


def test_two_customers_at_one_station_by_hand() -> None:
    # Alone, a customer is at the station half of the time. So the second one
    # takes 1.5 there and 1 elsewhere.
    assert rates.throughput([1.0], 1.0, 2) == pytest.approx(2 / 2.5)


def test_what_takes_no_time_has_no_limit() -> None:
    assert rates.throughput([0.0], 0.0, 3) == math.inf


@hypothesis.given(st.lists(_SECONDS, min_size=1, max_size=4), _SECONDS)
def test_more_customers_are_never_served_more_slowly_nor_beyond_the_limits(
    queues: list[float], delay: float
) -> None:
    served = [rates.throughput(queues, delay, n) for n in range(1, 30)]
    slack = 1 + 1e-9
    for before, after in itertools.pairwise(served):
        assert after * slack >= before
    for number, each in enumerate(served, 1):
        assert each <= slack / max(queues)
        assert each <= slack * number / (delay + sum(queues))


@hypothesis.given(_SECONDS, st.integers(1, 64))
def test_one_customer_takes_a_station_of_several_servers_as_one(
    seconds: float, servers: int
) -> None:
    queue, delay = rates.several_servers(seconds, servers)
    assert queue + delay == pytest.approx(seconds)
    assert queue == pytest.approx(seconds / servers)


def test_limits_by_hand() -> None:
    work = _work(
        compute=0.010,
        waves=3,
        ps={
            0: PsWork(2_500_000, 1_250_000, 0, 3, 100),
            1: PsWork(1_250_000, 1_250_000, 0, 3, 50),
        },
    )
    costs = dataclasses.replace(
        _FREE,
        ps_message=0.001,
        ps_operation=0.00001,
        worker_message=0.0005,
        chief_step=0.0001,
        chief_call=0.001,
    )
    machines = Machines(
        4, 2, bits_per_second=1e9, latency_seconds=0.001, ps_cores=2
    )
    machines = dataclasses.replace(machines, steps_per_call=10)
    forecast = rates.forecast(work, machines, costs)
    assert dict(forecast.limits) == pytest.approx(
        {
            # 10 ms of its own, and 6 messages.
            rates.WORKERS: 4 / 0.013,
            # 3.75 MB at 125 MB/s.
            rates.WORKER_NETWORK: 4 / 0.030,
            rates.LATENCY: 4 / 0.003,
            # 3 messages and 100 operations on the busiest one.
            rates.PS: 2 / 0.004,
            rates.PS_NETWORK: 1 / 0.020,
            rates.CHIEF: 1 / 0.0002,
        }
    )
    assert forecast.bound == rates.PS_NETWORK
    assert forecast.steps_per_second < 50


def test_one_worker_takes_the_time_of_everything_in_turn() -> None:
    work = _work(compute=0.01, ps={0: PsWork(messages=2)})
    costs = dataclasses.replace(_FREE, ps_message=0.001)
    machines = Machines(1, 1, latency_seconds=0.0, steps_per_call=1)
    forecast = rates.forecast(work, machines, costs)
    assert forecast.steps_per_second == pytest.approx(1 / 0.012)


def test_tasks_on_shared_cores_use_no_more_than_these() -> None:
    work = _work(
        compute=0.01, ps={0: PsWork(messages=2), 1: PsWork(messages=2)}
    )
    costs = dataclasses.replace(_FREE, ps_message=0.001)
    for workers in (1, 2, 8, 100):
        machines = Machines(
            workers, 2, shared_cores=2, latency_seconds=0.0, steps_per_call=1
        )
        forecast = rates.forecast(work, machines, costs)
        assert forecast.steps_per_second <= 2 / 0.014 + 1e-9
        if workers == 1:
            # Both parameter servers work at the same time.
            assert forecast.steps_per_second == pytest.approx(1 / 0.012)
    assert forecast.bound == rates.CORES
    assert forecast.steps_per_second == pytest.approx(2 / 0.014, rel=0.02)


def test_calls_are_as_long_as_fit_makes_them() -> None:
    costs = dataclasses.replace(_FREE, chief_call=0.001)

    def steps(compute: float, workers: int) -> int:
        machines = Machines(workers, 1, latency_seconds=0.0)
        forecast = rates.forecast(_work(compute=compute), machines, costs)
        assert forecast.limits[rates.CHIEF] == pytest.approx(
            1000 * forecast.steps_per_call
        )
        return forecast.steps_per_call

    assert steps(2.0, 1) == 1
    assert steps(0.05, 1) == 20
    assert steps(0.001, 1) == 100
    # With many workers a call takes longer, so that one chief is enough.
    assert steps(0.05, 16) == 48


def test_a_thousand_workers_take_a_moment() -> None:
    work = _work(compute=0.01, ps={0: PsWork(1000, 1000, 1000, 3, 100)})
    forecast = rates.forecast(work, Machines(1000, 1), Costs())
    assert forecast.steps_per_second <= min(forecast.limits.values())
