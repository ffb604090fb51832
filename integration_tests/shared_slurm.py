"""A Slurm cluster on this machine, for tests: all daemons, several nodes.

That needs root, and the packages slurmctld, slurmd, slurm-client and munge.
"""

import contextlib
import os
import pathlib
import socket
import subprocess
import time
from collections.abc import Callable
from collections.abc import Mapping

import shared_network

_TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
# A part of a heterogeneous job each.
_NUM_NODES = 3
_POLL_SECONDS = 0.2
_START_SECONDS = 60.0
_KEY_BYTES = 1024

_CONFIGURATION = """\
ClusterName=tfps
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
AuthType=auth/munge
# Jobs that go back into the queue wait for as long as credentials last.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,bf_hetjob_immediate,bf_resolution=1
# More cores and memory than this machine may have.
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MailProg=/bin/true
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 CPUs=8 "
    "RealMemory=64000 Port={port}\n"
)


def why_not() -> str:
    """Returns the reason why Slurm cannot be started; "" if it can."""
    missing = [tool for tool in _TOOLS if shared_network.tool(tool) is None]
    if missing or os.geteuid() != 0:
        return f"Slurm needs root and its programs; missing: {missing}"
    return ""


class Slurm:
    """A running cluster.

    Args:
        stack: Ends it.
        folder: A folder for its files.
        environ: Environment of its jobs.
    """

    def __init__(
        self,
        stack: contextlib.ExitStack,
        folder: pathlib.Path,
        environ: Mapping[str, str],
    ) -> None:
        self._folder = folder
        self._environ = {**environ, "SLURM_CONF": str(folder / "slurm.conf")}
        (folder / "state").mkdir()
        names = [f"node{number}" for number in range(_NUM_NODES)]
        ports = _free_ports(1 + _NUM_NODES)
        (folder / "slurm.conf").write_text(
            _CONFIGURATION.format(folder=folder, controller_port=ports[0])
            + "".join(
                _NODE.format(name=name, port=port)
                for name, port in zip(names, ports[1:], strict=True)
            )
        )
        key = folder / "munge.key"
        key.write_bytes(os.urandom(_KEY_BYTES))
        key.chmod(0o400)
        self._start(
            stack,
            "munged",
            *("--foreground", "--force", f"--key-file={key}"),
            f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid",
            f"--seed-file={folder}/munged.seed",
            f"--log-file={folder}/munged.log",
        )
        self.wait_until((folder / "munge.socket").exists, _START_SECONDS)
        self._start(stack, "slurmctld", "-D")
        for name in names:
            self._start(stack, "slurmd", "-D", "-N", name)
        stack.callback(self._cancel_all)
        self.wait_until(
            lambda: (
                self.call("sinfo", "-h", "-N", "-o", "%t").split()
                == ["idle"] * _NUM_NODES
            ),
            _START_SECONDS,
        )

    def call(self, *command: str) -> str:
        """Returns the output of a command; "" if it fails."""
        return subprocess.run(
            command,
            env=self._environ,
            cwd=self._folder,
            timeout=_START_SECONDS,
            check=False,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    def wait_until(
        self, is_met: Callable[[], bool], timeout_seconds: float
    ) -> None:
        """Waits until a condition is met.

        Raises:
            TimeoutError: If it is not met in time; with the logs.
        """
        deadline = time.monotonic() + timeout_seconds
        while not is_met():
            if time.monotonic() > deadline:
                logs = self._folder.glob("*.log")
                raise TimeoutError(
                    "\n".join(f"== {p}:\n{p.read_text()[-4000:]}" for p in logs)
                )
            time.sleep(_POLL_SECONDS)

    def _start(
        self, stack: contextlib.ExitStack, name: str, *arguments: str
    ) -> None:
        process = subprocess.Popen(
            [shared_network.tool(name) or name, *arguments],
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)

    def _cancel_all(self) -> None:
        """Ends all jobs: their processes are not those of a daemon."""
        self.call("scancel", "--user=root")
        self.wait_until(lambda: not self.call("squeue", "-h"), _START_SECONDS)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(count)
        ]
        return [each.getsockname()[1] for each in sockets]
