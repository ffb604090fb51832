"""Compares the memory of tuned tasks with that of plain ones.

    python -m integration_tests.benchmarks.task_memory [--calls 400]

Two clusters of one worker and one parameter server, one of them with
`tune=True`, run the same calls: eight at a time, each of which gathers random
numbers of rows (up to 24 MiB) and computes with them on several threads. Prints
for each task the memory of its own, in MiB, after the calls, its peak, and the
ratios of tuned to plain. If a ratio after the calls is above 1.10, the exit
code is 1.
"""

import argparse
import pathlib
import sys

import tensorflow as tf

import tfps_plugin as tfps

_WIDTH = 64
_TABLE_ROWS = 100_000
_MOST_ROWS = 96_000
_CALLS_AT_A_TIME = 8
_GATHERS = 4
_HIGHEST_RATIO = 1.10
_KIBIBYTES = 1024


def main() -> None:
    """Runs both clusters and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--calls", type=int, default=400)
    options = parser.parse_args()
    plain = _memory(options.calls, tune=False)
    tuned = _memory(options.calls, tune=True)
    print(f"{'MiB':20}{'plain':>8}{'tuned':>8}{'ratio':>8}")
    ratios = {name: tuned[name] / plain[name] for name in plain}
    for name, ratio in ratios.items():
        print(f"{name:20}{plain[name]:8.0f}{tuned[name]:8.0f}{ratio:8.2f}")
    if any(
        ratio > _HIGHEST_RATIO
        for name, ratio in ratios.items()
        if "after" in name
    ):
        sys.exit(1)


def _memory(calls: int, *, tune: bool) -> dict[str, float]:
    """Returns the memory of each task after so many calls, in MiB."""
    with tfps.LocalCluster(num_workers=1, num_ps=1, tune=tune) as cluster:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            max_closures_in_flight_per_worker=_CALLS_AT_A_TIME,
        )
        coordinator = tfps.ClusterCoordinator(strategy)
        with strategy.scope():
            table = tf.Variable(tf.zeros([_TABLE_ROWS, _WIDTH]))

        @tf.function(autograph=False)
        def call() -> None:
            sums = []
            for _ in range(_GATHERS):
                count = tf.random.uniform([], 10, _MOST_ROWS, tf.int32)
                ids = tf.random.uniform([count], 0, _TABLE_ROWS, tf.int32)
                rows = tf.gather(table, ids)
                sums.append(tf.reduce_sum(tf.tanh(rows) + 2.0 * rows, axis=0))
            table.scatter_add(
                tf.IndexedSlices(tf.stack(sums), tf.range(_GATHERS))
            )

        for _ in range(calls):
            coordinator.schedule(call)
        coordinator.join()
        memory = {}
        for job in ("worker", "ps"):
            pid = cluster.process(job, 0).pid
            memory[f"{job}, after calls"] = _field(pid, "RssAnon")
            memory[f"{job}, peak"] = _field(pid, "VmHWM")
        coordinator.close()
    return memory


def _field(pid: int, name: str) -> float:
    """Returns a field of a process's memory, in MiB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / _KIBIBYTES
    raise RuntimeError(f"/proc/{pid}/status has no line {name}.")


if __name__ == "__main__":
    main()
