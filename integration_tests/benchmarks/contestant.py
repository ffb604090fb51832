"""One contestant of a comparison, in a process of its own.

    python -m integration_tests.benchmarks.contestant NAME WORKLOAD

Makes its model, trains a little, and says how fast it is. Then it trains as
often as it is told: a line with a number on standard input is a number of
steps, and the answer is a line with the seconds and the CPU seconds of all its
processes. It ends at the end of input.

With `TFPS_TUNE=1` in the environment, every process that computes is tuned: the
tasks of a cluster, or this process if it trains alone.
"""

import contextlib
import functools
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from tfps_plugin.cluster.machine import tuning

from . import peers
from . import processes
from . import torchrec_peer
from .workloads import WORKLOADS
from .workloads import Workload

# Answers begin with it, and no other line does.
MARK = "@@"
# To trace, and to find out whether more steps would take minutes.
_FIRST_STEPS = 2
_WARM_UP_STEPS = 60
_SLOW_STEPS_PER_SECOND = 4.0


@contextlib.contextmanager
def _tfps(
    workload: Workload,
    steps_per_call: int | None,
    num_workers: int = 2,
    joint: bool = False,
    is_synchronous: bool = False,
    max_staleness: int | None = None,
    logical_cpus: int = 1,
) -> Iterator[Any]:
    import keras

    import tfps_plugin as tfps

    consistency: Any = tfps.Sync() if is_synchronous else tfps.Async()
    if max_staleness is not None:
        consistency = tfps.BoundedStaleness(max_staleness)
    with tfps.LocalCluster(
        num_workers=num_workers, num_ps=2, logical_cpus_per_worker=logical_cpus
    ) as cluster:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.MinSizePartitioner(
                workload.min_shard_bytes, max_shards=2
            ),
            consistency=consistency,
        )
        make = workload.joint_model if joint else workload.model
        if make is None:
            raise ValueError("The workload has no model of joint tables.")
        with strategy.scope():
            model = make(keras, steps_per_call)
        yield model, tfps.DatasetCreator(workload.dataset)
        tfps.ClusterCoordinator(strategy).close()


@contextlib.contextmanager
def _keras(workload: Workload, steps_per_call: int | None) -> Iterator[Any]:
    import keras

    yield workload.model(keras, steps_per_call), workload.dataset()


@contextlib.contextmanager
def _limit(workload: Workload, steps_per_call: int | None) -> Iterator[Any]:
    from .hand_fused import HandFused

    del steps_per_call
    yield HandFused(), workload.dataset()


# The trainer of each name and the steps of a call; None: as it chooses itself.
CONTESTANTS: dict[
    str, tuple[Callable[..., AbstractContextManager[Any]], int | None]
] = {
    "tfps": (_tfps, None),
    "tfps, 1 step a call": (_tfps, 1),
    "tfps, DistributedEmbedding": (
        functools.partial(_tfps, joint=True),
        None,
    ),
    "tfps, 1 worker": (functools.partial(_tfps, num_workers=1), None),
    "tfps, 1 worker with 2 replicas": (
        functools.partial(_tfps, num_workers=1, logical_cpus=2),
        None,
    ),
    "tfps, 4 workers": (functools.partial(_tfps, num_workers=4), None),
    "tfps, 8 workers": (functools.partial(_tfps, num_workers=8), None),
    # A step of these is a batch of each worker.
    **{
        f"tfps, synchronous, {number} workers": (
            functools.partial(_tfps, num_workers=number, is_synchronous=True),
            None,
        )
        for number in (1, 2, 4, 8)
    },
    **{
        f"tfps, bounded staleness 8, {number} workers": (
            functools.partial(_tfps, num_workers=number, max_staleness=8),
            None,
        )
        for number in (1, 2, 4, 8)
    },
    "TF PSS": (peers.tensorflow_strategy, 1),
    "TF PSS, 10 steps a call": (peers.tensorflow_strategy, 10),
    "Keras 3 alone": (_keras, 1),
    "Keras 3 alone, 10 steps a call": (_keras, 10),
    "tf-keras alone": (peers.tf_keras_alone, 1),
    "tf-keras alone, 10 steps a call": (peers.tf_keras_alone, 10),
    "fused by hand, alone": (_limit, 10),
    "TorchRec, 2 processes": (torchrec_peer.torchrec, None),
}
_DLRM26 = ("dlrm26", "dlrm26_whole", "dlrm26_cut")
# All contestants have their tables in memory at the same time.
_WITH_SMALL_TABLES = (*_DLRM26, "dense122", "wide_deep")
# Contestants that take part in some workloads only.
ONLY_IN = {
    "tfps, 1 step a call": _WITH_SMALL_TABLES,
    "tfps, DistributedEmbedding": ("dlrm26",),
    "tfps, 1 worker": ("dlrm26",),
    # `consistency` compares them.
    "tfps, 4 workers": (),
    "tfps, 8 workers": ("dlrm26",),
    "tfps, synchronous, 1 workers": (),
    "tfps, synchronous, 2 workers": (),
    "tfps, synchronous, 4 workers": (),
    "tfps, synchronous, 8 workers": (),
    "tfps, bounded staleness 8, 1 workers": (),
    "tfps, bounded staleness 8, 2 workers": (),
    "tfps, bounded staleness 8, 4 workers": (),
    "tfps, bounded staleness 8, 8 workers": (),
    "TF PSS, 10 steps a call": _WITH_SMALL_TABLES,
    "Keras 3 alone, 10 steps a call": _WITH_SMALL_TABLES,
    "tf-keras alone, 10 steps a call": _WITH_SMALL_TABLES,
    "fused by hand, alone": _DLRM26,
    "TorchRec, 2 processes": ("dlrm26",),
}
# Packages outside the extra `benchmarks`, by the contestant that needs them.
_NEEDS = {"TorchRec, 2 processes": "torchrec"}


def installed() -> list[str]:
    """Returns the contestants whose packages are installed."""
    return [
        name
        for name in CONTESTANTS
        if name not in _NEEDS or importlib.util.find_spec(_NEEDS[name])
    ]


def trains_alone(name: str) -> bool:
    """Returns whether a contestant is one process, and no cluster."""
    return "alone" in name


def main() -> None:
    """Serves until the end of input."""
    name, workload = sys.argv[1:]
    make, steps_per_call = CONTESTANTS[name]
    with (
        # TensorFlow starts its threads with the first operation.
        tuning.applied(name, (), os.environ)
        if trains_alone(name) and tuning.is_on(os.environ)
        else contextlib.nullcontext(),
        make(WORKLOADS[workload], steps_per_call) as (model, data),
    ):
        num_first = max(_FIRST_STEPS, _num_workers(make))
        train(model, data, num_first)
        speed = _speed(model, data, num_first)
        if speed > _SLOW_STEPS_PER_SECOND:
            train(model, data, _WARM_UP_STEPS)
        _answer({"steps_per_second": speed})
        for line in sys.stdin:
            pids = processes.with_descendants(os.getpid())
            cpu, start = processes.cpu_seconds(pids), time.perf_counter()
            train(model, data, int(line))
            seconds = time.perf_counter() - start
            _answer(
                {
                    "seconds": seconds,
                    "cpu_seconds": processes.cpu_seconds(pids) - cpu,
                }
            )


def _num_workers(make: Callable[..., Any]) -> int:
    """Returns the number of workers, if a contestant says it."""
    keywords = getattr(make, "keywords", {})
    return int(keywords.get("num_workers", 1))


def _speed(model: Any, data: Any, num_first: int) -> float:
    """Returns steps per second, without the start of each `fit`.

    Args:
        model: The model.
        data: Its input.
        num_first: Number of steps in which all workers take part.
    """
    seconds = []
    for steps in (num_first, 3 * num_first):
        start = time.perf_counter()
        train(model, data, steps)
        seconds.append(time.perf_counter() - start)
    return 2 * num_first / max(1e-3, seconds[1] - seconds[0])


def train(model: Any, data: Any, steps: int) -> None:
    """Trains a contestant for a number of steps."""
    model.fit(data, epochs=1, steps_per_epoch=steps, verbose=0)


def _answer(content: dict[str, Any]) -> None:
    print(MARK + json.dumps(content), flush=True)


if __name__ == "__main__":
    main()
