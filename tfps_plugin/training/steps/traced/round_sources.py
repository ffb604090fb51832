"""Batches of a round of local steps."""

from typing import Any

import tensorflow as tf

from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.strategy.replicas.device_copies import DeviceCopies
from tfps_plugin.training.local.local_rounds import Source
from tfps_plugin.training.steps.traced import batches_ahead
from tfps_plugin.training.steps.traced.batches_ahead import GroupBatches


def of_iterator(element_spec: Any, copies: DeviceCopies) -> Source:
    """Returns the batches of a round: an iterator, and its next batch."""
    return Source(
        (
            tf.data.IteratorSpec(element_spec),
            batches_ahead.spec(element_spec, copies),
        ),
        first=lambda iterator, now: now,
        goes_on=lambda iterator, first, done, now: now.is_there(),
        batch=lambda iterator, first, done, now: now.take(),
        following=lambda iterator, first, done, left: batches_ahead.of_iterator(
            done < left, iterator, copies
        ),
    )


def of_group(codec: BatchCodec, group: GroupBatches) -> Source:
    """Returns the batches of a round: a group, the first one's number, and it.

    Args:
        codec: Codec of the batches.
        group: What decodes them.
    """
    return Source(
        (
            tf.TensorSpec([None, codec.num_parts], tf.string),
            tf.TensorSpec([], tf.int32),
            group.spec,
        ),
        first=lambda group_KC, first, ahead: ahead,
        goes_on=lambda group_KC, first, ahead, done, now: tf.constant(True),
        batch=lambda group_KC, first, ahead, done, now: group.take(
            group_KC, first + done, now
        ),
        following=lambda group_KC, first, ahead, done, left: group.ahead(
            group_KC, first + done
        ),
    )
