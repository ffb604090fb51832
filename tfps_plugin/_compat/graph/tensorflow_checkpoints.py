"""Private TensorFlow API around object-based checkpoints.

A restore does not report objects that it left unchanged, unless it is asked to
raise; and then it requires everything, even metrics and loose counters.

Checked against TensorFlow 2.20 and 2.21.
"""

from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2
from tensorflow.python.checkpoint import checkpoint
from tensorflow.python.checkpoint import checkpoint_management

# Name of a variable's value among the entries of an object in a checkpoint.
from tensorflow.python.trackable.base import (
    VARIABLE_VALUE_KEY as VARIABLE_VALUE_KEY,
)

_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"


def open_reader(prefix: str) -> Any:
    """Opens the checkpoint with that prefix.

    Like `tf.train.load_checkpoint`, which also accepts folders, and mistakes a
    prefix for one on file systems without real folders, such as `ram://`.

    Raises:
        tf.errors.OpError: If it cannot be read.
    """
    return tf.compat.v1.train.NewCheckpointReader(prefix)


def read_object_graph(reader: Any) -> Any:
    """Returns the `TrackableObjectGraph` of a checkpoint.

    Args:
        reader: A reader from `open_reader`.

    Raises:
        tf.errors.NotFoundError: If the checkpoint has none, because TensorFlow
            1 wrote it.
    """
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(reader.get_tensor(_GRAPH_KEY))
    return graph


def object_graph_of(prefix: str) -> Any:
    """Returns the `TrackableObjectGraph` of the checkpoint with a prefix."""
    return read_object_graph(open_reader(prefix))


def deferred_restorations(status: Any) -> Any:
    """Returns an object that lives until everything is restored.

    Args:
        status: The result of `tf.train.Checkpoint.read`.
    """
    return status._checkpoint


def execute_write_callbacks(
    options: tf.train.CheckpointOptions, prefix: str
) -> None:
    """Runs the callbacks of a caller after a checkpoint was written.

    `tf.train.Checkpoint.save` uses them to announce the newest checkpoint.
    """
    callbacks = options.experimental_write_callbacks
    if callbacks:
        checkpoint._execute_callbacks(callbacks, prefix)


def write_checkpoint_state(folder: str, prefixes: list[str]) -> None:
    """Records the checkpoints of a folder for `tf.train.latest_checkpoint`.

    The public function is deprecated in favour of TensorFlow's own manager.

    Args:
        folder: The folder of the checkpoints.
        prefixes: All prefixes, oldest first; at least one.
    """
    checkpoint_management.update_checkpoint_state_internal(
        folder, prefixes[-1], prefixes, save_relative_paths=True
    )


def restore_marks(variables: list[Any]) -> list[int]:
    """Returns the number of the last restore that set each variable.

    TensorFlow's own `assert_existing_objects_matched` compares it.
    """
    marks = []
    for variable in variables:
        variable._maybe_initialize_trackable()
        marks.append(variable._update_uid)
    return marks
