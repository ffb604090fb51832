"""Steps per second of a cluster, and the resource that bounds them. Pure.

Workers are customers of a closed network of queues: each computes a step by
itself, then needs the busiest parameter server, its network, and the chief.
Mean value analysis (Reiser and Lavenberg, 1980) gives the throughput for any
number of workers. A station with several cores is a queue of that many times
the speed and a delay (Seidmann, 1987).
"""

import dataclasses
import math
from collections.abc import Mapping
from collections.abc import Sequence

from tfps_plugin.planning.costs import Costs
from tfps_plugin.planning.machines import Machines
from tfps_plugin.planning.work import PsWork
from tfps_plugin.planning.work import StepWork
from tfps_plugin.training.steps.tuning import packing

WORKERS = "worker compute"
PS = "ps compute"
WORKER_NETWORK = "worker network"
PS_NETWORK = "ps network"
CHIEF = "chief dispatch"
LATENCY = "network latency"
CORES = "shared cores"


@dataclasses.dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds that one step of one worker takes of each resource.

    Attributes:
        worker: Time of the worker, with its messages.
        worker_cpu: Processor time of that.
        ps: Processor time of each parameter server, by its index.
        worker_network: Time of the worker's bytes, the busier direction.
        ps_network: Likewise of each parameter server.
        latency: Time of the messages that follow one another, besides bytes.
        chief: Processor time of the chief.
    """

    worker: float
    worker_cpu: float
    ps: Mapping[int, float]
    worker_network: float
    ps_network: Mapping[int, float]
    latency: float
    chief: float


@dataclasses.dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted speed of a cluster.

    Attributes:
        num_workers: Number of workers.
        steps_per_second: Predicted steps per second, of all workers.
        bound: Resource that runs out first, one of the names of this module.
        limits: Steps per second that each resource alone would allow.
        steps_per_call: Number of steps in a call of a worker.
    """

    num_workers: int
    steps_per_second: float
    bound: str
    limits: Mapping[str, float]
    steps_per_call: int = 1


def ps_seconds(work: PsWork, costs: Costs, steps_per_call: int) -> float:
    """Returns the processor time of a parameter server for a step.

    Args:
        work: Its work.
        costs: Costs of the runtime.
        steps_per_call: Number of steps in a call of a worker.
    """
    return (
        costs.ps_message * work.messages
        + costs.ps_operation * work.operations
        + costs.ps_element * work.elements
        + costs.ps_byte * work.num_bytes
        + costs.ps_call / steps_per_call
    )


def step_times(
    work: StepWork, machines: Machines, costs: Costs, steps_per_call: int
) -> StepTimes:
    """Returns the seconds that a step takes of each resource.

    Args:
        work: Work of the step.
        machines: The cluster.
        costs: Costs of the runtime.
        steps_per_call: Number of steps in a call of a worker.
    """
    overhead = (
        costs.worker_message * work.messages
        + costs.worker_byte * (work.bytes_in + work.bytes_out)
        + costs.worker_call / steps_per_call
    )
    bytes_per_second = machines.bits_per_second / 8
    return StepTimes(
        worker=work.compute_seconds + overhead,
        worker_cpu=work.compute_cpu_seconds + overhead,
        ps={
            index: ps_seconds(each, costs, steps_per_call)
            for index, each in work.ps.items()
        },
        worker_network=max(work.bytes_in, work.bytes_out) / bytes_per_second,
        ps_network={
            index: max(each.bytes_in, each.bytes_out) / bytes_per_second
            for index, each in work.ps.items()
        },
        latency=work.waves * machines.latency_seconds,
        chief=costs.chief_step + costs.chief_call / steps_per_call,
    )


def forecast(work: StepWork, machines: Machines, costs: Costs) -> Forecast:
    """Predicts the speed of a cluster.

    Args:
        work: Work of one step.
        machines: The cluster.
        costs: Costs of the runtime.

    Returns:
        The prediction. With `steps_per_call=None`, calls have as many steps as
        `fit` chooses at the predicted speed.
    """
    steps_per_call = machines.steps_per_call
    if steps_per_call is None:
        steps_per_call = chosen_steps_per_call(work, machines, costs)
    return _forecast(work, machines, costs, steps_per_call)


def chosen_steps_per_call(
    work: StepWork, machines: Machines, costs: Costs
) -> int:
    """Returns the number of steps that `fit` packs into a call of a worker.

    It measures how long steps take within a call, where nobody waits for the
    chief.

    Args:
        work: Work of one step.
        machines: The cluster.
        costs: Costs of the runtime.
    """
    of_calls = dataclasses.replace(
        costs,
        **dict.fromkeys(("chief_step", "chief_call"), 0.0),
        **dict.fromkeys(("ps_call", "worker_call"), 0.0),
    )
    workers = machines.num_workers
    rate = _forecast(work, machines, of_calls, 1).steps_per_second
    return packing.most_steps(
        workers / rate, packing.seconds_of_a_call(workers)
    )


def _forecast(
    work: StepWork, machines: Machines, costs: Costs, steps_per_call: int
) -> Forecast:
    times = step_times(work, machines, costs, steps_per_call)
    if machines.shared_cores is not None:
        return dataclasses.replace(
            _on_shared_cores(times, machines.num_workers, machines),
            steps_per_call=steps_per_call,
        )
    workers = machines.num_workers
    busiest = max(times.ps.values(), default=0.0)
    ps_network = max(times.ps_network.values(), default=0.0)
    queue, delay = several_servers(busiest, machines.ps_cores)
    think = times.worker + times.worker_network + times.latency + delay
    rate = throughput([queue, ps_network, times.chief], think, workers)
    limits = {
        WORKERS: _per_second(times.worker, workers),
        WORKER_NETWORK: _per_second(times.worker_network, workers),
        LATENCY: _per_second(times.latency, workers),
        PS: _per_second(busiest, machines.ps_cores),
        PS_NETWORK: _per_second(ps_network, 1),
        CHIEF: _per_second(times.chief, 1),
    }
    bound = min(limits, key=limits.__getitem__)
    return Forecast(workers, rate, bound, limits, steps_per_call)


def _on_shared_cores(
    times: StepTimes, workers: int, machines: Machines
) -> Forecast:
    """Predicts the speed of tasks that share the cores of one machine."""
    cores = machines.shared_cores or 1.0
    total = times.worker_cpu + sum(times.ps.values()) + times.chief
    # Parameter servers work at the same time, and nothing else need wait.
    # A machine that is busy with other things computes longer than it would.
    worker = min(times.worker, times.worker_cpu)
    alone = worker + max(times.ps.values(), default=0.0)
    queue = total / cores
    rate = throughput([queue], max(0.0, alone - queue), workers)
    limits = {
        WORKERS: _per_second(alone, workers),
        CORES: _per_second(total, cores),
    }
    return Forecast(workers, rate, min(limits, key=limits.__getitem__), limits)


def several_servers(seconds: float, servers: float) -> tuple[float, float]:
    """Returns the time in the queue and the delay that stand for a station.

    Args:
        seconds: Time that a customer takes of one server.
        servers: Number of its servers.
    """
    return seconds / servers, seconds * (servers - 1) / servers


def throughput(queues: Sequence[float], delay: float, customers: int) -> float:
    """Returns the customers that a closed network serves in a second.

    Args:
        queues: Time that a customer takes of each station with a queue.
        delay: Time that a customer spends without any queue.
        customers: Number of customers.

    Returns:
        The rate by exact mean value analysis; infinite if nothing takes time.
    """
    waiting = [0.0] * len(queues)
    rate = 0.0
    for number in range(1, customers + 1):
        times = [
            each * (1 + ahead)
            for each, ahead in zip(queues, waiting, strict=True)
        ]
        whole = delay + sum(times)
        if whole == 0:
            return math.inf
        rate = number / whole
        waiting = [rate * each for each in times]
    return rate


def _per_second(seconds: float, number: float) -> float:
    return number / seconds if seconds else math.inf
