"""Compares the memory of a process with tuned malloc to that of a plain one.

    python -m integration_tests.benchmarks.task_memory [--rounds 3]

A process has a server's thread pools and runs the same calls from eight threads
at a time: each gathers random numbers of rows (up to 24 MiB) and computes with
them. Processes take turns with the settings of malloc that tuned tasks have and
without. Prints the memory of their own, in MiB, after the calls, and the ratio
of the medians. If it is above 1.10, the exit code is 1.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import threading

from tfps_plugin.cluster.machine import malloc_settings

_WIDTH = 64
_TABLE_ROWS = 100_000
_MOST_ROWS = 96_000
_CALLERS = 8
_GATHERS = 4
_INTER_OP_THREADS = 16
_HIGHEST_RATIO = 1.10
_KIBIBYTES = 1024


def main() -> None:
    """Runs processes of both kinds in turns and prints their memory."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=15, help="of each thread")
    parser.add_argument("--soak", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.soak:
        _soak(options.calls)
        print(_own_mebibytes())
        return
    tuned_variables = malloc_settings.variables(os.environ)
    plain, tuned = [], []
    for _ in range(options.rounds):
        plain.append(_measure(options.calls, {}))
        tuned.append(_measure(options.calls, tuned_variables))
        print(f"plain {plain[-1]:.0f}, tuned {tuned[-1]:.0f} MiB", flush=True)
    ratio = statistics.median(tuned) / statistics.median(plain)
    print(f"tuned / plain: {ratio:.2f}")
    if ratio > _HIGHEST_RATIO:
        sys.exit(1)


def _measure(calls: int, variables: dict[str, str]) -> float:
    """Returns the memory of a process after its calls, in MiB."""
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name, "--soak", f"--calls={calls}"],
        env={**os.environ, **variables, "TF_CPP_MIN_LOG_LEVEL": "3"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout)


def _soak(calls: int) -> None:
    """Runs the calls of all threads in this process."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(_INTER_OP_THREADS)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    table = tf.Variable(tf.zeros([_TABLE_ROWS, _WIDTH]))

    @tf.function(autograph=False, input_signature=[])
    def call() -> tf.Tensor:
        sums = []
        for _ in range(_GATHERS):
            count = tf.random.uniform([], 10, _MOST_ROWS, tf.int32)
            ids = tf.random.uniform([count], 0, _TABLE_ROWS, tf.int32)
            rows = tf.gather(table, ids)
            sums.append(tf.reduce_sum(tf.tanh(rows) + 2.0 * rows, axis=0))
        return tf.stack(sums)

    call_once = call.get_concrete_function()

    def call_often() -> None:
        for _ in range(calls):
            call_once()

    callers = [threading.Thread(target=call_often) for _ in range(_CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()


def _own_mebibytes() -> float:
    """Returns the memory of this process that is no page of a file."""
    status = pathlib.Path("/proc/self/status").read_text()
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / _KIBIBYTES
    raise RuntimeError("/proc/self/status has no line RssAnon.")


if __name__ == "__main__":
    main()
