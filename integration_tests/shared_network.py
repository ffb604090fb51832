"""Networks that tests cut, mend, slow down, or make lossy.

Every task is in a network namespace of its own, behind a bridge. That needs
root and the `ip` command.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence

Task = tuple[str, int]
TASKS: tuple[Task, ...] = (
    ("worker", 0),
    ("worker", 1),
    ("ps", 0),
    ("ps", 1),
)
# A chief that has no namespace of its own is where the bridge is.
CHIEF: Task = ("chief", 0)
# The third number is chosen to avoid other networks.
_SUBNETS = "10.231"


def tool(name: str) -> str | None:
    """Returns the path of a root command, which may not be on the PATH."""
    path = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
    return shutil.which(name, path=os.pathsep.join(path))


def _ip(*arguments: str, check: bool = True) -> str:
    return subprocess.run(
        [tool("ip") or "ip", *arguments],
        check=check,
        capture_output=True,
        text=True,
    ).stdout


def _free_subnet() -> str:
    """Returns a subnet that no other run uses, not even a killed one."""
    taken = _ip("-4", "addr")
    # Runs that begin at the same time try different numbers.
    numbers = [(os.getpid() + i) % 256 for i in range(256)]
    return next(
        subnet
        for subnet in (f"{_SUBNETS}.{number}" for number in numbers)
        if f"inet {subnet}." not in taken
    )


def why_not() -> str:
    """Returns the reason why namespaces are not available; "" if they are."""
    if os.geteuid() != 0 or tool("ip") is None:
        return "network namespaces need root and the ip command"
    name = f"tfps-try-{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("link", "add", name[:15], "type", "bridge")
        _ip("link", "del", name[:15])
        _ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"
    return ""


class NotPossibleError(Exception):
    """The machine does not support the request; the message says why."""


class Network:
    """Namespaces for tasks, and the faults between them."""

    def __init__(
        self, stack: contextlib.ExitStack, tasks: Sequence[Task] = TASKS
    ) -> None:
        self._tasks = tuple(tasks)
        # How often each task got another address.
        self._moves = dict.fromkeys(self._tasks, 0)
        self._bridge = f"tfps{os.getpid() % 100_000}"
        self._subnet = _free_subnet()
        _ip("link", "add", self._bridge, "type", "bridge")
        stack.callback(_ip, "link", "del", self._bridge, check=False)
        _ip("addr", "add", f"{self._subnet}.1/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for task in self._tasks:
            space = self.namespace(*task)
            _ip("netns", "add", space)
            stack.callback(_ip, "netns", "del", space, check=False)
            link = self._link(*task)
            _ip(
                *("link", "add", link, "type", "veth"),
                *("peer", "name", "eth0", "netns", space),
            )
            # The kernel takes its time to remove those of a namespace.
            stack.callback(_ip, "link", "del", link, check=False)
            _ip("link", "set", link, "master", self._bridge, "up")
            _ip(
                *("-n", space, "addr", "add"),
                *(f"{self.host(*task)}/24", "dev", "eth0"),
            )
            for device in ("lo", "eth0"):
                _ip("-n", space, "link", "set", device, "up")

    def namespace(self, job: str, index: int) -> str:
        return f"{self._bridge}-{job}-{index}"

    def host(self, job: str, index: int) -> str:
        task = (job, index)
        if task not in self._tasks:
            return f"{self._subnet}.1"
        number = self._moves[task] * len(self._tasks)
        return f"{self._subnet}.{number + self._tasks.index(task) + 2}"

    def move(self, job: str, index: int) -> None:
        """Gives a task another address, as a new pod has."""
        space = self.namespace(job, index)
        _ip("-n", space, "addr", "flush", "dev", "eth0")
        self._moves[job, index] += 1
        address = f"{self.host(job, index)}/24"
        _ip("-n", space, "addr", "add", address, "dev", "eth0")

    def cut(self, job: str, index: int) -> None:
        """Cuts a task off from all others."""
        _ip("link", "set", self._link(job, index), "down")

    def mend(self, job: str, index: int) -> None:
        _ip("link", "set", self._link(job, index), "up")

    def cut_between(self, one: Task, other: Task) -> None:
        """Cuts two tasks, or one and the chief, off from each other only."""
        self._route("add", one, other)

    def mend_between(self, one: Task, other: Task) -> None:
        self._route("del", one, other, check=False)

    def degrade(self, *what: str) -> None:
        """Makes every link lose or delay packets; without arguments, stops.

        Raises:
            NotPossibleError: If links cannot be degraded here.
        """
        for task in self._tasks:
            self._shape(task, *(["netem", *what] if what else []))

    def narrow(self, task: Task, rate: str = "") -> None:
        """Limits what arrives at a task; without a rate, stops.

        Args:
            task: The task.
            rate: Bits a second, as in "2mbit".

        Raises:
            NotPossibleError: If links cannot be narrowed here.
        """
        limits = ("burst", "16kb", "latency", "2s")
        self._shape(task, *(["tbf", "rate", rate, *limits] if rate else []))

    def _shape(self, task: Task, *what: str) -> None:
        """Gives the link towards a task another queue, or the usual one."""
        tc = tool("tc")
        if tc is None:
            raise NotPossibleError("slow and lossy links need the tc command")
        link = self._link(*task)
        for command in (
            [tc, "qdisc", "del", "dev", link, "root"],
            [tc, "qdisc", "add", "dev", link, "root", *what],
        ):
            if "add" in command and not what:
                continue
            done = subprocess.run(
                command, check=False, capture_output=True, text=True
            )
            if "add" in command and done.returncode:
                raise NotPossibleError(f"no {what[0]} here: {done.stderr}")

    def _link(self, job: str, index: int) -> str:
        return f"{self._bridge}{job[0]}{index}"

    def _route(
        self, action: str, one: Task, other: Task, check: bool = True
    ) -> None:
        # Packets from one to the other, including answers, are dropped.
        _ip(
            *("-n", self.namespace(*one), "route", action),
            *("blackhole", f"{self.host(*other)}/32"),
            check=check,
        )
