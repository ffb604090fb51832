"""Compares the busiest parameter server before and after placement by traffic.

    python -m integration_tests.benchmarks.hot_ps [--ps 2]

Trains a workload with placement="traffic", whose variables move once the
traffic of 200 steps is known. Prints the busiest ps's share of all bytes that
parameter servers send and get, its share of their processor time, and the steps
a second: before, and afterwards.
"""

import argparse
import threading
import time
from typing import Any

import keras

import tfps_plugin as tfps
from tfps_plugin.recovery.resharding import traffic_placement

from . import processes
from .steps_watch import StepsWatch
from .workloads import WORKLOADS

_STEPS = 300


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workload", default="dlrm26_zipf", choices=WORKLOADS)
    parser.add_argument("--ps", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    workload = WORKLOADS[options.workload]
    # Steps that are not counted are measured first.
    traffic_placement.STEPS = 1 << 60
    with tfps.LocalCluster(num_workers=2, num_ps=options.ps) as cluster:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.MinSizePartitioner(
                workload.min_shard_bytes, max_shards=options.ps
            ),
            placement="traffic",
        )
        coordinator = tfps.ClusterCoordinator(strategy)
        found: list[tfps.events.VariablesMoved] = []
        has_moved = threading.Event()

        def note(event: tfps.events.Event) -> None:
            if isinstance(event, tfps.events.VariablesMoved):
                found.append(event)
                has_moved.set()

        coordinator.events.subscribe(note)
        with strategy.scope():
            model = workload.model(keras, None)
        watch = StepsWatch(model.optimizer.iterations)
        figures: list[tuple[float, float]] = []
        is_over = threading.Event()

        def measure() -> None:
            time.sleep(options.seconds / 2)
            figures.append(
                _figures(cluster, options.ps, watch, options.seconds)
            )
            traffic_placement.STEPS = _STEPS
            if has_moved.wait(600.0):
                time.sleep(options.seconds / 2)
                figures.append(
                    _figures(cluster, options.ps, watch, options.seconds)
                )
            is_over.set()

        class Ends(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                self.model.stop_training = is_over.is_set()

        watch.start()
        measuring = threading.Thread(target=measure)
        measuring.start()
        model.fit(
            tfps.DatasetCreator(workload.dataset),
            steps_per_epoch=_STEPS,
            epochs=1 << 20,
            verbose=0,
            callbacks=[Ends()],
        )
        measuring.join()
        watch.stop()
        coordinator.close()
    (event,) = found
    print(event)
    print(f"{'':8}{'traffic':>9}{'ps time':>9}{'steps/s':>9}")
    for name, share, (time_share, rate) in zip(
        ("before", "after"),
        (event.hottest_before, event.hottest_after),
        figures,
        strict=True,
    ):
        print(f"{name:8}{share:9.2f}{time_share:9.2f}{rate:9.1f}")


def _figures(
    cluster: tfps.LocalCluster, num_ps: int, watch: StepsWatch, seconds: float
) -> tuple[float, float]:
    """Returns the busiest ps's share of time, and the steps a second."""
    pids = [cluster.process("ps", index).pid for index in range(num_ps)]
    before = [processes.cpu_seconds([pid]) for pid in pids]
    began_at = time.perf_counter()
    time.sleep(seconds)
    used = [
        processes.cpu_seconds([pid]) - b
        for pid, b in zip(pids, before, strict=True)
    ]
    return max(used) / sum(used), watch.rate(began_at, time.perf_counter())


if __name__ == "__main__":
    main()
