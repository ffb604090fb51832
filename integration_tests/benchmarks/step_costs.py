"""Measures a step's cost for each task: processor time, switches, bytes.

    python -m integration_tests.benchmarks.step_costs [dlrm26 ...]

Two workers and two parameter servers on this machine train each workload of
`workloads.WORKLOADS`. Prints the id of each process, too, for tools such as
`perf` that show where it spends its time. The chief comes first, then workers
and parameter servers.
"""

import argparse
import contextlib
import os
import pathlib
import re
import time
from typing import NamedTuple

from . import contestant
from . import processes
from .workloads import WORKLOADS

_WARM_UP_STEPS = 100
# Voluntary and involuntary context switches.
_SWITCHES = re.compile(r"voluntary_ctxt_switches:\s*(\d+)")


class _Costs(NamedTuple):
    """Resources that a process has used so far.

    Attributes:
        user_seconds: Processor time in user mode.
        system_seconds: Processor time in the kernel.
        switches: Number of context switches of its threads.
    """

    user_seconds: float
    system_seconds: float
    switches: int

    @classmethod
    def of(cls, pid: int) -> "_Costs":
        """Returns the costs of a process and its current threads."""
        user, system = processes.user_and_system_seconds(pid)
        switches = 0
        for status in pathlib.Path(f"/proc/{pid}").glob("task/*/status"):
            # A thread may end before its file is read.
            with contextlib.suppress(OSError):
                found = _SWITCHES.findall(status.read_text())
                switches += sum(map(int, found))
        return cls(user, system, switches)


def main() -> None:
    """Runs it and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "workloads", nargs="*", default=["dlrm26"], metavar="workload"
    )
    parser.add_argument("--steps", type=int, default=800)
    options = parser.parse_args()
    for name in options.workloads:
        _measure(name, options.steps)


def _measure(name: str, steps: int) -> None:
    make, steps_per_call = contestant.CONTESTANTS["tfps"]
    with make(WORKLOADS[name], steps_per_call) as (model, data):
        contestant.train(model, data, _WARM_UP_STEPS)
        pids = processes.with_descendants(os.getpid())
        before = {pid: _Costs.of(pid) for pid in pids}
        bytes_before, packets_before = _loopback()
        start = time.perf_counter()
        contestant.train(model, data, steps)
        seconds = time.perf_counter() - start
        num_bytes, num_packets = _loopback()
        after = {pid: _Costs.of(pid) for pid in pids}
    print(
        f"{name}: {steps / seconds:.1f} steps/s, "
        f"{(num_bytes - bytes_before) / steps / 1000:.0f} kB and "
        f"{(num_packets - packets_before) / steps:.0f} packets a step"
    )
    print(f"{'process':>9}{'user ms':>10}{'system ms':>11}{'switches':>10}")
    for pid in pids:
        user, system, switches = (
            (late - early) / steps
            for late, early in zip(after[pid], before[pid], strict=True)
        )
        print(
            f"{pid:9}{1000 * user:10.2f}{1000 * system:11.2f}{switches:10.0f}"
        )


def _loopback() -> tuple[int, int]:
    """Returns the bytes and packets that this machine has sent to itself."""
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        interface, _, fields = line.partition(":")
        if interface.strip() == "lo":
            num_bytes, num_packets = fields.split()[:2]
            return int(num_bytes), int(num_packets)
    return 0, 0


if __name__ == "__main__":
    main()
