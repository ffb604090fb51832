"""Copies of parts of a batch on the devices that compute with them.

A batch is made on the CPU of a worker. What only takes part in computations,
dense floats, is copied to the devices of replicas before the step begins.
Ids, strings, and ragged and sparse parts stay on the CPU, which looks them up.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin.strategy.replicas import split_batches
from tfps_plugin.strategy.replicas.per_replica import PerReplica
from tfps_plugin.variables.lookup import graph_checks

# By the position of a part in the batch: a copy for each replica, which has
# the share of the replica.
Copies = dict[int, list[tf.Tensor]]


class CopiedBatch(NamedTuple):
    """A batch, and what is on devices already.

    Attributes:
        batch: The whole batch of the worker, on its CPU.
        copies: Copies of some of its parts.
    """

    batch: Any
    copies: Copies

    def shares(self, num_replicas: int) -> Any:
        """Returns the batch for the replicas, with the copies in it.

        Args:
            num_replicas: Number of replicas.

        Returns:
            The batch for one replica; for several, a structure of
            `PerReplica`.
        """
        batch = self.batch
        if num_replicas > 1:
            batch = split_batches.split(batch, num_replicas)
        parts = tf.nest.flatten(batch)
        for position, values in self.copies.items():
            part = parts[position]
            parts[position] = (
                PerReplica(values, part.num_examples)
                if num_replicas > 1
                else values[0]
            )
        return tf.nest.pack_sequence_as(batch, parts)


class DeviceCopies:
    """Copies of the parts of batches of one type.

    Threading: only the thread that traces uses it.
    """

    def __init__(self, element_spec: Any, devices: Sequence[str]) -> None:
        """Finds the parts that are copied.

        Args:
            element_spec: Type of a batch.
            devices: The device of each replica; none, and nothing is copied.
        """
        self._element_spec = element_spec
        self._devices = devices
        self._part_specs = {
            position: spec
            for position, spec in enumerate(tf.nest.flatten(element_spec))
            if devices and _computes(spec)
        }

    @property
    def are_made(self) -> bool:
        """True if any part is copied."""
        return bool(self._part_specs)

    @property
    def specs(self) -> dict[int, list[tf.TensorSpec]]:
        """Types of the copies."""
        return {
            position: [self._share_spec(spec) for _ in self._devices]
            for position, spec in self._part_specs.items()
        }

    @property
    def step_spec(self) -> Any:
        """Type of the argument of a step: `CopiedBatch`, or that of a batch."""
        if not self.are_made:
            return self._element_spec
        return CopiedBatch(self._element_spec, self.specs)

    def of(self, batch: Any) -> Any:
        """Returns a batch as the step takes it, with copies if any are made.

        Args:
            batch: The batch, on the CPU.
        """
        if not self.are_made:
            return batch
        return CopiedBatch(batch, self._on_devices(self._on_cpu(batch)))

    def of_optional(self, batch: tf.experimental.Optional) -> Copies:
        """Returns the copies of a batch that may be absent.

        Args:
            batch: The batch. Nobody uses its copies if there is none.
        """
        if not self.are_made:
            return {}
        with tf.device(graph_checks.CPU):
            shares = tf.cond(
                batch.has_value(),
                lambda: self._on_cpu(batch.get_value()),
                self._nothing,
            )
        return self._on_devices(shares)

    def _on_cpu(self, batch: Any) -> Copies:
        """Returns the shares of replicas, where the batch is."""
        parts = tf.nest.flatten(batch)
        copied = [parts[position] for position in self._part_specs]
        number = len(self._devices)
        shares = [[part] for part in copied]
        if number > 1:
            # The step checks that parts have as many rows. Here, that would
            # fail before its turn.
            shares = split_batches.split_unchecked(copied, number)
        return dict(zip(self._part_specs, shares, strict=True))

    def _nothing(self) -> Copies:
        with tf.device(graph_checks.CPU):
            return tf.nest.map_structure(
                lambda spec: tf.zeros(
                    [size or 0 for size in spec.shape.as_list()], spec.dtype
                ),
                self.specs,
            )

    def _on_devices(self, shares: Copies) -> Copies:
        copies: Copies = {}
        for position, values in shares.items():
            shape = self._share_spec(self._part_specs[position]).shape
            copies[position] = []
            for value, device in zip(values, self._devices, strict=True):
                copy = on_device(value, device)
                copy.set_shape(shape)
                copies[position].append(copy)
        return copies

    def _share_spec(self, spec: tf.TensorSpec) -> tf.TensorSpec:
        if len(self._devices) == 1:
            return spec
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)


def on_device(value: tf.Tensor, device: str) -> tf.Tensor:
    """Returns a copy of a tensor on a device of the worker."""
    # The operation is what makes TensorFlow copy the tensor as soon as it is
    # there; else it is copied once an operation of the step needs it.
    with tf.device(device):
        return tf.identity(value)


def _computes(spec: Any) -> bool:
    """Returns whether a part takes part in computations, and has rows."""
    return (
        isinstance(spec, tf.TensorSpec)
        and spec.dtype.is_floating
        and bool(spec.shape.rank)
    )
