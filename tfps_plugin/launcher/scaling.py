"""Job whose numbers of workers and parameter servers change while it runs."""

import json
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task
from tfps_plugin.launcher.control_socket import ControlSocket
from tfps_plugin.launcher.process_plan import ProcessPlan
from tfps_plugin.launcher.process_plan import first_tasks
from tfps_plugin.launcher.task_range import TaskRange
from tfps_plugin.launcher.task_range import WantedTasks

_FILE = "cluster.json"


class Scaling:
    """Takes requests for other numbers of tasks, and tells the chief.

    The chief reads in a file which tasks there are. It adds and removes them by
    itself, and tells those to end that it has removed: only the chief knows
    when nothing needs them any more, such as the variables of a parameter
    server.

    Threading: for use by one thread.

    Attributes:
        control: The socket at which requests arrive.
    """

    def __init__(
        self,
        control: ControlSocket,
        ranges: Iterable[TaskRange],
        largest: ClusterSpec,
        plan_of: Callable[[ClusterSpec, Task], ProcessPlan],
    ) -> None:
        """Describes the cluster with the first numbers of tasks.

        Args:
            control: The socket.
            ranges: The numbers of workers and of parameter servers.
            largest: The cluster with the largest numbers.
            plan_of: Returns the process of a task, by the cluster of which it
                is to be.
        """
        self.control = control
        self._ranges = {each.job: each for each in ranges}
        self._wanted = {
            job: WantedTasks(numbers) for job, numbers in self._ranges.items()
        }
        self._largest = largest
        self._plan_of = plan_of
        self._describe()

    @property
    def path(self) -> str:
        """Path of the file that describes the cluster."""
        return str(self.control.folder / _FILE)

    def take_request(self) -> str | None:
        """Takes a request and answers it.

        Returns:
            A sentence for the console; None if nothing changes.
        """
        with self.control.request() as (request, answer):
            refusal = self._refusal(request)
            if refusal is not None:
                answer["error"] = refusal
                return None
            before = self._counted()
            for job, number in request.items():
                self._wanted[job].change_to(number)
            self._describe()
            text = f"{self._counted()} from now on; {before} before."
            answer["text"] = text
            return text

    def take_due(self, running: Collection[str]) -> list[ProcessPlan]:
        """Returns the processes to start now.

        Args:
            running: Names of the processes that run.
        """
        tasks = [_parse(name) for name in running]
        cluster = self._cluster()
        return [
            self._plan_of(cluster, cluster.task(job, index))
            for job, wanted in self._wanted.items()
            for index in wanted.take_due(
                {index for its_job, index in tasks if its_job == job}
            )
        ]

    def ended(self, name: str, returncode: int) -> str | None:
        """Records that a process has ended.

        Args:
            name: Its name.
            returncode: Its exit code, as in `subprocess`.

        Returns:
            See `WantedTasks.ended`.
        """
        job, index = _parse(name)
        if job not in self._wanted:
            return None
        return self._wanted[job].ended(index, returncode)

    def _refusal(self, request: Any) -> str | None:
        """Returns why a request cannot be met; None: it can."""
        if not (
            isinstance(request, dict)
            and request
            and request.keys() <= self._ranges.keys()
            and all(type(number) is int for number in request.values())
        ):
            return (
                "The request is not understood. Expected numbers of "
                f"{' and '.join(self._ranges)}. Received: {request!r}. Use "
                "`tfps scale` of the release that the job runs with."
            )
        for job, number in request.items():
            refusal = self._ranges[job].refusal(number)
            if refusal is not None:
                return refusal
        return None

    def _numbers(self) -> Mapping[str, int]:
        return {job: wanted.number for job, wanted in self._wanted.items()}

    def _counted(self) -> str:
        return " and ".join(
            self._ranges[job].counted(number)
            for job, number in self._numbers().items()
        )

    def _cluster(self) -> ClusterSpec:
        return first_tasks(self._largest, self._numbers())

    def _describe(self) -> None:
        path = self.control.folder / _FILE
        other = path.with_suffix(".new")
        other.write_text(json.dumps(self._cluster().as_dict()))
        other.rename(path)


def _parse(name: str) -> tuple[str, int]:
    """Returns job and index of a process: "ps 1"; the chief has none."""
    job, _, index = name.partition(" ")
    return job, int(index or 0)
