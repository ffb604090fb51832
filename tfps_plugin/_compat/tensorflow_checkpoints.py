"""Private TensorFlow API around object-based checkpoints.

A restore says nothing of objects that it left as they were, unless asked to
raise; and then it asks for everything, metrics and loose counters too.

Checked against TensorFlow 2.20 and 2.21.
"""

from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2
from tensorflow.python.checkpoint import checkpoint
from tensorflow.python.checkpoint import checkpoint_management

# Name of a variable's value among what a checkpoint has of an object.
from tensorflow.python.trackable.base import (
    VARIABLE_VALUE_KEY as VARIABLE_VALUE_KEY,
)

_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"


def open_reader(prefix: str) -> Any:
    """Opens the checkpoint with that prefix.

    As `tf.train.load_checkpoint`, which also takes folders, and takes a prefix
    for one on file systems that have no real folders, as `ram://`.

    Raises:
        tf.errors.OpError: If it cannot be read.
    """
    return tf.compat.v1.train.NewCheckpointReader(prefix)


def read_object_graph(reader: Any) -> Any:
    """The `TrackableObjectGraph` of a checkpoint.

    Args:
        reader: From `open_reader`.

    Raises:
        tf.errors.NotFoundError: If the checkpoint has none: TensorFlow 1
            wrote it.
    """
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(reader.get_tensor(_GRAPH_KEY))
    return graph


def object_graph_of(prefix: str) -> Any:
    """The `TrackableObjectGraph` of the checkpoint with that prefix."""
    return read_object_graph(open_reader(prefix))


def deferred_restorations(status: Any) -> Any:
    """Returns an object that lives until everything is restored.

    Args:
        status: What `tf.train.Checkpoint.read` has returned.
    """
    return status._checkpoint


def execute_write_callbacks(
    options: tf.train.CheckpointOptions, prefix: str
) -> None:
    """Does what a caller wants to be done when a checkpoint is written.

    `tf.train.Checkpoint.save` tells others of the newest checkpoint so.
    """
    callbacks = options.experimental_write_callbacks
    if callbacks:
        checkpoint._execute_callbacks(callbacks, prefix)


def write_checkpoint_state(folder: str, prefixes: list[str]) -> None:
    """Tells `tf.train.latest_checkpoint` of a folder's checkpoints.

    The public function for it is deprecated in favour of a manager of
    TensorFlow's own.

    Args:
        folder: Where they are.
        prefixes: All of them, oldest first; at least one.
    """
    checkpoint_management.update_checkpoint_state_internal(
        folder, prefixes[-1], prefixes, save_relative_paths=True
    )


def restore_marks(variables: list[Any]) -> list[int]:
    """Of each variable, the number of the last restore that gave it a value.

    TensorFlow's own `assert_existing_objects_matched` compares it.
    """
    marks = []
    for variable in variables:
        variable._maybe_initialize_trackable()
        marks.append(variable._update_uid)
    return marks
