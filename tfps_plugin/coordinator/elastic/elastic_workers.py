"""The methods of a coordinator that change who its workers are."""

import logging
import threading
from typing import Any

from tfps_plugin import errors
from tfps_plugin.coordinator import caller_checks
from tfps_plugin.coordinator.session_protocol import SessionLike
from tfps_plugin.coordinator.worker_pool import WorkerPool
from tfps_plugin.inputs.worker_dataset import WorkerDatasets
from tfps_plugin.strategy import consistency as consistencies

_logger = logging.getLogger("tfps_plugin.coordinator")

_TIMEOUT_SECONDS = 600.0
# One change after another: they are rare.
_lock = threading.Lock()


class ElasticWorkers:
    """Adds and removes workers; a base class of the coordinator.

    Threading: any thread.
    """

    _pool: WorkerPool
    strategy: Any

    @property
    def num_workers(self) -> int:
        """Number of workers of the cluster, present or not."""
        return len(self.worker_indices)

    @property
    def worker_indices(self) -> tuple[int, ...]:
        """Indices of the workers of the cluster, present or not, ascending.

        They are `range(num_workers)` until a worker is removed.
        """
        return self._pool.membership.indices

    @property
    def absent_workers(self) -> tuple[int, ...]:
        """Indices of the workers that are lost at this moment, ascending."""
        return self._pool.membership.absent

    def add_worker(self, address: str) -> int:
        """Adds a worker to the cluster, while it trains or not.

        Its process serves as the worker with the index that this returns: the
        lowest that no worker has had. The worker takes part as soon as it
        answers, like one that was lost and is back. `docs/elastic.md` says from
        which step on, and which share of the input it reads.

        Args:
            address: Its address, `"host:port"`. If it is that of a worker that
                was removed, this worker comes back, with its index.

        Returns:
            Its index.

        Raises:
            ClusterConfigurationError: If `address` is malformed, or another
                task has it; or if the cluster has grown to twice its size, and
                beyond 256 workers.
            UnsupportedError: When called inside a scheduled function or while
                a `tf.function` is traced.
            InputError: If a per-worker dataset has no share for it.
        """
        caller_checks.refuse_inside("add_worker")
        session: SessionLike = self.strategy.session
        session.connection.require()
        with _lock:
            known = {
                task.address: task.index
                for task in session.workers
                if task.index in self.worker_indices
            }
            if address in known:
                raise errors.ClusterConfigurationError(
                    "This worker belongs to the cluster already; expected the "
                    f"address of another one. Received: address={address!r}, "
                    f"which is that of worker {known[address]}."
                )
            task = session.add_worker(address)
            try:
                session.connection.part(WorkerDatasets).extend_to(task.index)
            except BaseException:
                session.remove(task)
                raise
            self._pool.add_worker(task)
        _logger.info("%s at %s is added to the cluster.", task, address)
        return int(task.index)

    def remove_worker(
        self, worker_index: int, *, timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> None:
        """Removes a worker from the cluster, while it trains or not.

        The worker begins nothing new and ends what it runs: functions, and the
        steps that it makes together with others. What it has counted is kept;
        what it has not read of its share of the input, others read. Then its
        process is told to end. Returns when the worker has left. Its index is
        not used again, unless its address is added again.

        Args:
            worker_index: One of `worker_indices`.
            timeout_seconds: How long to wait for what the worker runs.

        Raises:
            ValueError: If it is not the index of a worker; if it is the last
                one; or if too few are left for the backup workers.
            TimeoutError: If what it runs takes longer. It then takes part
                again.
            UnsupportedError: When called inside a scheduled function or while
                a `tf.function` is traced.
        """
        caller_checks.refuse_inside("remove_worker")
        caller_checks.require_worker_index(worker_index, self.worker_indices)
        self.strategy.session.connection.require()
        num_left = self.num_workers - 1
        if not num_left:
            raise ValueError(
                "The last worker cannot be removed: nothing would run any "
                "more. Expected another worker to be left. Received: "
                f"worker_index={worker_index!r}. Add one before, with "
                "coordinator.add_worker()."
            )
        consistency = getattr(self.strategy, "consistency", None)
        if consistency is not None:
            consistencies.require_workers(consistency, num_left)
        if not self._pool.departures.leave(
            self._pool.membership.workers[worker_index],
            for_good=True,
            timeout_seconds=timeout_seconds,
        ):
            raise TimeoutError(
                f"Worker {worker_index} still runs what it had begun. Expected "
                f"its end within {timeout_seconds:g} s. Received: a function, "
                "steps together with other workers, or a part of a function "
                "of another worker, that take longer. It takes part again. "
                "Call remove_worker() with a larger "
                "timeout_seconds."
            )
