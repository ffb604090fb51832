"""Batches that a worker's loop takes one ahead of the step.

The next batch is a loop variable, so that no step begins without one, and no
batch is taken that a call does not need. It does not wait for the present step,
and so neither do its copies on the devices that compute.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin._compat.graph.tensorflow_inputs import NoneTensorSpec
from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.strategy.replicas.device_copies import CopiedBatch
from tfps_plugin.strategy.replicas.device_copies import Copies
from tfps_plugin.strategy.replicas.device_copies import DeviceCopies
from tfps_plugin.variables.lookup import graph_checks


class BatchAhead(NamedTuple):
    """The batch of the next step, if there is one.

    Attributes:
        batch: The batch, an optional, on the CPU.
        copies: Copies of some of its parts on devices; empty if none are made.
    """

    batch: Any
    copies: Copies

    def is_there(self) -> tf.Tensor:
        """Returns whether there is one, a boolean scalar."""
        with tf.device(graph_checks.CPU):
            return self.batch.has_value()

    def take(self) -> Any:
        """Returns the batch as the step takes it; there has to be one."""
        with tf.device(graph_checks.CPU):
            batch = self.batch.get_value()
        return CopiedBatch(batch, self.copies) if self.copies else batch


def spec(element_spec: Any, copies: DeviceCopies) -> BatchAhead:
    """Returns the type of a `BatchAhead`.

    Args:
        element_spec: Type of a batch.
        copies: The copies that are made.
    """
    return BatchAhead(tf.OptionalSpec(element_spec), copies.specs)


def of_iterator(
    is_needed: tf.Tensor, iterator: Any, copies: DeviceCopies
) -> BatchAhead:
    """Takes the next batch of an iterator.

    Args:
        is_needed: Whether to take it; a boolean scalar.
        iterator: The iterator.
        copies: The copies to make.
    """

    # All on the CPU: an optional that goes to an accelerator takes the whole
    # batch along, ids too.
    with tf.device(graph_checks.CPU):
        batch = tf.cond(
            is_needed,
            iterator.get_next_as_optional,
            lambda: tf.experimental.Optional.empty(iterator.element_spec),
        )
    return BatchAhead(batch, copies.of_optional(batch))


class GroupBatches:
    """Batches of a group, which are decoded ahead if anything is copied.

    If nothing is, what stands for the next batch has no meaning.

    Threading: only the thread that traces uses it.
    """

    def __init__(self, codec: BatchCodec, copies: DeviceCopies) -> None:
        """Prepares.

        Args:
            codec: Codec of the batches.
            copies: The copies to make.
        """
        self._codec = codec
        self._copies = copies
        # Optionals have a type of their own for None.
        self._element_spec = tf.nest.map_structure(
            lambda leaf: NoneTensorSpec() if leaf is None else leaf,
            codec.decoded_spec,
        )

    @property
    def spec(self) -> Any:
        """Type of a result of `ahead`."""
        if not self._copies.are_made:
            return tf.TensorSpec([], tf.int32)
        return spec(self._element_spec, self._copies)

    def ahead(self, group_KC: tf.Tensor, number: tf.Tensor | int) -> Any:
        """Returns what stands for a batch; there is none after the last one.

        Args:
            group_KC: The group.
            number: Number of the batch in the group.
        """
        if not self._copies.are_made:
            return tf.constant(0)

        def decoded() -> Any:
            return tf.experimental.Optional.from_value(
                self._codec.decode(group_KC[number])
            )

        with tf.device(graph_checks.CPU):
            batch = tf.cond(
                number < tf.shape(group_KC)[0],
                decoded,
                lambda: tf.experimental.Optional.empty(self._element_spec),
            )
        return BatchAhead(batch, self._copies.of_optional(batch))

    def take(self, group_KC: tf.Tensor, number: tf.Tensor, ahead: Any) -> Any:
        """Returns a batch as the step takes it.

        Args:
            group_KC: The group.
            number: Number of the batch in the group.
            ahead: What stands for it.
        """
        if self._copies.are_made:
            return ahead.take()
        with tf.device(graph_checks.CPU):
            return self._codec.decode(group_KC[number])


def batch_of(value: Any) -> Any:
    """Returns what is on the CPU of a batch, also of one that is ahead."""
    is_copied = isinstance(value, BatchAhead | CopiedBatch)
    return value.batch if is_copied else value


def invariants(structure: Any) -> Any:
    """Returns what the shapes of loop variables have in common in all rounds.

    Args:
        structure: Loop variables, a structure with batches ahead.
    """
    return tf.nest.map_structure(
        lambda value: value.shape if isinstance(value, tf.Tensor) else None,
        structure,
    )
