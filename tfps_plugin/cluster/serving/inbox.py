"""The chief's own mailbox, in which its tasks post messages."""

import contextlib
import logging

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.cluster.serving import mailbox
from tfps_plugin.cluster.serving import messages

_logger = logging.getLogger("tfps_plugin.cluster")

_CPU = "/device:CPU:0"


def take() -> list[messages.Message]:
    """Returns the messages that have arrived since the last call.

    It does not wait: who waits for a queue of TensorFlow holds a thread that
    nothing can end.

    Threading: one thread at a time.
    """
    with (
        tensorflow_execution.own_executor(),
        tf.init_scope(),
        compat.clear_device(),
        tf.device(_CPU),
    ):
        queue = tf.raw_ops.FIFOQueueV2(
            component_types=[tf.string],
            shapes=[[]],
            capacity=-1,
            shared_name=mailbox.NAME,
        )
        number = int(tf.raw_ops.QueueSizeV2(handle=queue))
        texts = [
            tf.raw_ops.QueueDequeueV2(
                handle=queue, component_types=[tf.string]
            )[0]
            for _ in range(number)
        ]
    found = []
    for text in texts:
        with contextlib.suppress(errors.InternalError):
            found.append(messages.decode(text.numpy().decode()))
    if len(found) < number:
        _logger.warning(
            "%d messages of tasks were not understood. Install the same "
            "release of tfps_plugin on all machines.",
            number - len(found),
        )
    return found
