"""Job whose number of workers changes while it runs."""

import json
from collections.abc import Callable
from collections.abc import Collection

from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.launcher.control_socket import ControlSocket
from tfps_plugin.launcher.plan import ProcessPlan
from tfps_plugin.launcher.worker_range import WantedWorkers
from tfps_plugin.launcher.worker_range import WorkerRange

_FILE = "cluster.json"


class Scaling:
    """Takes requests for another number of workers, and tells the chief.

    The chief reads which workers there are in a file. It adds and removes them
    by itself, and tells those to end that it has removed.

    Threading: for use by one thread.

    Attributes:
        control: The socket at which requests arrive.
    """

    def __init__(
        self,
        control: ControlSocket,
        numbers: WorkerRange,
        cluster_of: Callable[[int], ClusterSpec],
        plan_of: Callable[[int, int], ProcessPlan],
    ) -> None:
        """Describes the cluster with the first number of workers.

        Args:
            control: The socket.
            numbers: The numbers of workers that there may be.
            cluster_of: Returns the cluster with a number of workers.
            plan_of: Returns the process of a worker, by its index and the
                number of workers.
        """
        self.control = control
        self._wanted = WantedWorkers(numbers)
        self._cluster_of = cluster_of
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
            number = request.get("workers") if isinstance(request, dict) else 0
            if not isinstance(number, int):
                number = 0
            refusal = self._wanted.refusal(number)
            if refusal is not None:
                answer["error"] = refusal
                return None
            before = self._wanted.number
            self._wanted.change_to(number)
            self._describe()
            answer["text"] = f"{before} workers before, {number} from now on."
            return f"{number} workers are wanted from now on, not {before}."

    def take_due(self, running: Collection[str]) -> list[ProcessPlan]:
        """Returns the processes to start now.

        Args:
            running: Names of the processes that run.
        """
        prefix = f"{WORKER} "
        indices = {
            int(name.removeprefix(prefix))
            for name in running
            if name.startswith(prefix)
        }
        return [
            self._plan_of(index, self._wanted.number)
            for index in self._wanted.take_due(indices)
        ]

    def _describe(self) -> None:
        jobs = self._cluster_of(self._wanted.number).as_dict()
        path = self.control.folder / _FILE
        other = path.with_suffix(".new")
        other.write_text(json.dumps(jobs))
        other.rename(path)
