"""Containers of manifests, run as processes in network namespaces.

Each has a network of its own, with the host name that its manifest gives it,
and is started again as its manifest says. Of what Kubernetes and Compose do,
this has no more than the tests need, written from their documentation.
"""

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import shared_network
import yaml
from shared_network import Network
from shared_network import Task

_ROOT = pathlib.Path(__file__).parent.parent
# Runs in a mount namespace of its own, so that nothing of it stays.
_ENTER = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'
_REFERENCE = re.compile(r"\$\$|\$\((\w+)\)")


@dataclasses.dataclass(frozen=True)
class Container:
    """A container of a manifest.

    Attributes:
        task: Its kind and index.
        command: Its command line.
        environ: Its environment variables.
        most_restarts: The number of restarts after failures.
        final_codes: Exit codes after which it is not started again.
        liveness: The command of its liveness probe; empty if it has none.
    """

    task: Task
    command: tuple[str, ...]
    environ: Mapping[str, str]
    most_restarts: int
    final_codes: frozenset[int]
    liveness: tuple[str, ...]

    @property
    def host(self) -> str:
        """Its host name, as the others know it."""
        kind, index = self.task
        config = json.loads(self.environ["TF_CONFIG"])
        address: str = config["cluster"][kind][index]
        return address.rpartition(":")[0]


def of_jobset(text: str) -> Iterator[Container]:
    """Yields the containers of the JobSet in a manifest."""
    (jobset,) = (
        each for each in yaml.safe_load_all(text) if each["kind"] == "JobSet"
    )
    for job in jobset["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        final = {
            code
            for rule in spec["podFailurePolicy"]["rules"]
            if rule["action"] == "FailJob"
            for code in rule["onExitCodes"]["values"]
        }
        for index in range(spec["completions"]):
            environ: dict[str, str] = {}
            for variable in container["env"]:
                # The only field that is asked for is the index.
                value = variable.get("value", str(index))
                environ[variable["name"]] = _expand(value, environ)
            yield Container(
                task=(job["name"], index),
                command=tuple(
                    _expand(word, environ) for word in container["command"]
                ),
                environ=environ,
                most_restarts=spec["backoffLimitPerIndex"],
                final_codes=frozenset(final),
                liveness=tuple(
                    container.get("livenessProbe", {})
                    .get("exec", {})
                    .get("command", ())
                ),
            )


def of_compose(text: str) -> Iterator[Container]:
    """Yields the containers of a Compose file."""
    for service in yaml.safe_load(text)["services"].values():
        environ = {
            name: value.replace("$$", "$")
            for name, value in service["environment"].items()
        }
        task = json.loads(environ["TF_CONFIG"])["task"]
        policy, _, limit = service["restart"].partition(":")
        assert policy == "on-failure"
        yield Container(
            task=(task["type"], task["index"]),
            command=tuple(w.replace("$$", "$") for w in service["command"]),
            environ=environ,
            most_restarts=int(limit),
            final_codes=frozenset(),
            liveness=tuple(service.get("healthcheck", {}).get("test", ())[1:]),
        )


def _expand(text: str, environ: Mapping[str, str]) -> str:
    """Replaces references to variables as Kubernetes does."""
    return _REFERENCE.sub(
        lambda match: "$" if match[1] is None else environ[match[1]], text
    )


class Pods:
    """Running containers; the chief's output is read line by line.

    Args:
        containers: The containers.
        network: A network with a namespace for each of their tasks.
        folder: A folder for logs, and for what they write.
        deadline_seconds: The time for all of it.
    """

    def __init__(
        self,
        containers: list[Container],
        network: Network,
        folder: pathlib.Path,
        deadline_seconds: float,
    ) -> None:
        self._containers = {each.task: each for each in containers}
        self._network = network
        self._folder = folder
        self._hosts = folder / "hosts"
        self._deadline = time.monotonic() + deadline_seconds
        self._restarts: collections.Counter[Task] = collections.Counter()
        self._selector = selectors.DefaultSelector()
        self._processes: dict[Task, subprocess.Popen[bytes]] = {}
        self.exit_codes: dict[Task, list[int]] = {
            t: [] for t in self._containers
        }
        self.lines: list[str] = []
        self._rest = ""
        self._commands = environ_with_commands(folder)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Starts all containers; kills those that are left at the end."""
        self._write_hosts()
        with contextlib.ExitStack() as stack:
            stack.callback(self._selector.close)
            stack.callback(self._kill)
            for task in self._containers:
                self._start(task)
            yield

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Waits until the chief prints a line that contains a pattern."""
        while True:
            for _ in range(len(self.lines)):
                line = self.lines.pop(0)
                if match := re.search(pattern, line):
                    return match
            self._wait(pattern)

    def wait_for_restart(self, task: Task, then: str) -> re.Match[str]:
        """Waits until a task was started again and the chief prints a line."""
        count = len(self.exit_codes[task])
        while len(self.exit_codes[task]) == count:
            self._wait(f"the end of {task}")
        return self.wait_for(then)

    def wait_for_end(self) -> None:
        """Waits until all containers have ended for good."""
        while self._processes:
            self._wait("the end of the job")

    def send(self, task: Task, number: signal.Signals) -> None:
        """Sends a signal to the process of a container."""
        self._processes[task].send_signal(number)

    def is_alive(self, task: Task) -> bool:
        """Runs the liveness probe of a container."""
        container = self._containers[task]
        assert container.liveness
        return not subprocess.run(
            self._inside(container, container.liveness),
            env=self._environ(container),
            timeout=max(1.0, self._deadline - time.monotonic()),
            check=False,
        ).returncode

    def _wait(self, what: str) -> None:
        """Waits for a line or an end, and starts again what has failed."""
        left_seconds = self._deadline - time.monotonic()
        ready = self._selector.select(max(0.0, left_seconds))
        assert ready, f"no {what} in time\n{self.logs()}"
        for key, _ in ready:
            if key.data is None:
                # Not by lines: what a buffer keeps, the selector does not see.
                text = os.read(key.fd, 65536).decode()
                *lines, self._rest = (self._rest + text).split("\n")
                self.lines += lines
                if not text:
                    self._selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
            else:
                self._selector.unregister(key.fileobj)
                os.close(key.fd)
                self._has_ended(key.data)

    def _has_ended(self, task: Task) -> None:
        container = self._containers[task]
        process = self._processes.pop(task)
        code = process.wait()
        # As a shell and container runtimes have it.
        code = 128 - code if code < 0 else code
        self.exit_codes[task].append(code)
        if code == 0:
            return
        assert code not in container.final_codes, self.logs()
        self._restarts[task] += 1
        assert self._restarts[task] <= container.most_restarts, self.logs()
        # A new pod has another address under the same name.
        self._network.move(*task)
        self._write_hosts()
        self._start(task)

    def _start(self, task: Task) -> None:
        container = self._containers[task]
        is_chief = task[0] == "chief"
        with self._log(task).open("ab") as log:
            process = subprocess.Popen(
                self._inside(container, container.command),
                env=self._environ(container),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_chief else log,
                stderr=log,
                start_new_session=True,
            )
        self._processes[task] = process
        if process.stdout is not None:
            self._selector.register(process.stdout, selectors.EVENT_READ)
        self._selector.register(
            os.pidfd_open(process.pid), selectors.EVENT_READ, task
        )

    def _inside(
        self, container: Container, command: tuple[str, ...]
    ) -> list[str]:
        """Returns a command that runs another one in a container."""
        return [
            *(shared_network.tool("ip") or "ip", "netns", "exec"),
            self._network.namespace(*container.task),
            *("unshare", "--uts", "--", "sh", "-c", _ENTER, "sh"),
            *(container.host.partition(".")[0], str(self._hosts)),
            *command,
        ]

    def _environ(self, container: Container) -> dict[str, str]:
        return {**self._commands, **container.environ}

    def _write_hosts(self) -> None:
        lines = ["127.0.0.1 localhost"]
        lines += (
            f"{self._network.host(*task)} {container.host}"
            for task, container in self._containers.items()
        )
        # In place: this very file is what the containers see.
        self._hosts.write_text("\n".join(lines) + "\n")

    def _log(self, task: Task) -> pathlib.Path:
        return self._folder / f"{task[0]}-{task[1]}.log"

    def logs(self) -> str:
        """Returns the ends of all logs, for a failure."""
        return "\n".join(
            f"== {task}: {self.exit_codes[task]}\n"
            + (self._log(task).read_text()[-3000:])
            for task in self._containers
        )

    def _kill(self) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for key in list(self._selector.get_map().values()):
            if key.data is None:
                key.fileobj.close()  # type: ignore[union-attr]
            else:
                os.close(key.fd)


def environ_with_commands(folder: pathlib.Path) -> dict[str, str]:
    """Returns an environment that has the commands `tfps` and `python`.

    They are those of this process, whatever else is installed.

    Args:
        folder: A folder for them.
    """
    commands = folder / "bin"
    commands.mkdir()
    for name, arguments in (("tfps", "-m tfps_plugin"), ("python", "")):
        file = commands / name
        file.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        file.chmod(0o755)
    path = (str(commands), os.environ.get("PATH", os.defpath))
    return {
        **os.environ,
        "PATH": os.pathsep.join([*path, "/usr/sbin", "/sbin"]),
        "PYTHONPATH": str(_ROOT),
    }


def containers_of(format_name: str, text: str) -> list[Container]:
    """Returns the containers of a manifest."""
    read: dict[str, Any] = {"jobset": of_jobset, "compose": of_compose}
    return list(read[format_name](text))
