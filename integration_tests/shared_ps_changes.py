"""Parameter servers that come and go while a test trains."""

from typing import Any

import keras

import tfps_plugin as tfps

_EXIT_SECONDS = 20.0


class PsChanges(keras.callbacks.Callback):
    """Removes parameter servers at some batches, and adds them again at others.

    In the end all of them are back.

    Attributes:
        num_changes: Number of changes so far.
    """

    def __init__(
        self,
        cluster: tfps.LocalCluster,
        removed_at: dict[int, int],
        added_at: dict[int, int],
    ) -> None:
        """Sets the changes.

        Args:
            cluster: The cluster.
            removed_at: Index of the parameter server to remove, by batch.
            added_at: Index of the one to add again, by batch.
        """
        super().__init__()
        self._cluster = cluster
        self._removed_at = removed_at
        self._added_at = added_at
        self._away: set[int] = set()
        self.num_changes = 0

    @property
    def _coordinator(self) -> tfps.ClusterCoordinator:
        return tfps.ClusterCoordinator(self.model.distribute_strategy)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._removed_at.get(batch, -1) in self._coordinator.ps_indices:
            self.remove(self._removed_at[batch])
        if self._added_at.get(batch, -1) in self._away:
            self.add(self._added_at[batch])

    def remove(self, index: int) -> None:
        """Removes a parameter server, and starts its process again."""
        self._coordinator.remove_ps(index)
        process = self._cluster.process("ps", index)
        assert process.wait(_EXIT_SECONDS) == 0
        self._cluster.start("ps", index)
        self._away.add(index)
        self.num_changes += 1

    def add(self, index: int) -> None:
        """Adds a parameter server that was removed."""
        address = self._cluster.cluster_spec.ps_addresses[index]
        assert self._coordinator.add_ps(address) == index
        self._away.discard(index)
        self.num_changes += 1

    def on_train_end(self, logs: Any = None) -> None:
        for index in sorted(self._away):
            self.add(index)
