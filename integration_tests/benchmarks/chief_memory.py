"""Measures the chief's memory and time to create a large sharded table.

    python -m integration_tests.benchmarks.chief_memory [--megabytes 1024]

Creates a `keras.layers.Embedding` of that size over two parameter servers and
prints, for the chief and for each ps, the peak of resident memory before and
after, and how long it took; and the same for the layer in one process.
"""

import argparse
import multiprocessing
import resource
import time
from typing import Any

_WIDTH = 64
_MEBIBYTE = 1 << 20


def main() -> None:
    """Runs both and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    megabytes = parser.parse_args().megabytes
    rows = megabytes * _MEBIBYTE // (4 * _WIDTH)
    print(f"table of {rows:,} x {_WIDTH} float32: {megabytes} MiB\n")
    print(f"{'':24}{'before':>10}{'after':>10}{'growth':>10}{'seconds':>10}")
    for name, run in (("on two ps", _on_cluster), ("in one process", _alone)):
        # A process of its own: peaks of memory never go down.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            for who, before, after, seconds in pool.apply(run, (rows,)):
                print(
                    f"{name + ', ' + who:24}{before:10,.0f}{after:10,.0f}"
                    f"{after - before:10,.0f}{seconds:10.2f}"
                )


_Row = tuple[str, float, float, float]


def _on_cluster(rows: int) -> list[_Row]:
    import keras

    import tfps_plugin as tfps

    with tfps.LocalCluster(num_workers=1, num_ps=2) as cluster:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
        )
        servers = [cluster.process("ps", i).pid for i in range(2)]
        with strategy.scope():
            _create(keras, 100)  # what is loaded at first use
            before = [_own_peak(), *map(_peak_of, servers)]
            start = time.perf_counter()
            layer = _create(keras, rows)
            seconds = time.perf_counter() - start
        after = [_own_peak(), *map(_peak_of, servers)]
        del layer
    return [
        (who, b, a, seconds)
        for who, b, a in zip(
            ("chief", "ps 0", "ps 1"), before, after, strict=True
        )
    ]


def _alone(rows: int) -> list[_Row]:
    import keras

    _create(keras, 100)
    before = _own_peak()
    start = time.perf_counter()
    layer = _create(keras, rows)
    seconds = time.perf_counter() - start
    after = _own_peak()
    del layer
    return [("process", before, after, seconds)]


def _create(keras: Any, rows: int) -> Any:
    layer = keras.layers.Embedding(rows, _WIDTH)
    layer.build()
    return layer


def _own_peak() -> float:
    """Returns the peak of this process's resident memory, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _peak_of(pid: int) -> float:
    """Returns the peak of another process's resident memory, in MiB."""
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/{pid}/status has no VmHWM line")


if __name__ == "__main__":
    main()
