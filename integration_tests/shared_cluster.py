"""One cluster for all tests that do not kill its tasks.

Starting a cluster takes longer than most tests, and connecting to another one
ends it. So there is one at a time, and the modules that need the same kind run
one after the other.
"""

import pytest

import tfps_plugin as tfps

Shape = tuple[int, int, int]

# Replicas would compute on them; `gpu_test` does that.
_WITHOUT_GPUS = {"CUDA_VISIBLE_DEVICES": "-1"}


class SharedCluster:
    """The cluster that runs now, if one does."""

    def __init__(self) -> None:
        self._shape: Shape | None = None
        self._cluster: tfps.LocalCluster | None = None

    def of(
        self, num_workers: int, num_ps: int, logical_cpus: int = 1
    ) -> tfps.LocalCluster:
        """Returns the running cluster if it fits and is healthy, or a new one.

        Args:
            num_workers: Number of workers.
            num_ps: Number of parameter servers.
            logical_cpus: Number of CPU devices of each worker.
        """
        shape = num_workers, num_ps, logical_cpus
        if self._cluster is not None:
            if self._shape == shape and self._is_well():
                return self._cluster
            self.stop()
        self._cluster = tfps.LocalCluster(
            num_workers,
            num_ps,
            logical_cpus_per_worker=logical_cpus,
            # Replicas would compute on GPUs; `gpu_test` has those.
            environ={"CUDA_VISIBLE_DEVICES": "-1"}
            if logical_cpus > 1
            else None,
        )
        self._shape = shape
        return self._cluster

    def stop(self) -> None:
        """Ends it, if one runs."""
        if self._cluster is not None:
            self._cluster.stop()
        self._cluster = self._shape = None

    def _is_well(self) -> bool:
        """Returns False if a failed test has left a task dead."""
        assert self._cluster is not None
        return all(
            self._cluster.process(task.job, task.index).poll() is None
            for task in self._cluster.cluster_spec.serving_tasks
        )


def shape_of(item: pytest.Item) -> Shape | None:
    """Returns the kind of shared cluster that a test uses, if it uses one."""
    marker = item.get_closest_marker("cluster")
    if marker is None:
        return None
    given = marker.kwargs
    return given["num_workers"], given["num_ps"], given.get("logical_cpus", 1)


def with_all_tasks(cluster: tfps.LocalCluster) -> tfps.LocalCluster:
    """Starts tasks again that earlier tests have lost; returns the cluster."""
    for task in cluster.cluster_spec.serving_tasks:
        if cluster.process(task.job, task.index).poll() is not None:
            cluster.start(task.job, task.index)
    cluster.wait_until_ready()
    return cluster
