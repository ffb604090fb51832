"""Private TensorFlow API around object-based checkpoints.

A restore says nothing of objects that it left as they were, unless asked to
raise; and then it asks for everything, metrics and loose counters too.

Checked against TensorFlow 2.20 and 2.21.
"""

from typing import Any

from tensorflow.core.protobuf import trackable_object_graph_pb2

_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"


def read_object_graph(reader: Any) -> Any:
    """The `TrackableObjectGraph` of a checkpoint.

    Args:
        reader: From `tf.train.load_checkpoint`.

    Raises:
        tf.errors.NotFoundError: If the checkpoint has none: TensorFlow 1
            wrote it.
    """
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(reader.get_tensor(_GRAPH_KEY))
    return graph


def restore_marks(variables: list[Any]) -> list[int]:
    """Of each variable, the number of the last restore that gave it a value.

    TensorFlow's own `assert_existing_objects_matched` compares it.
    """
    marks = []
    for variable in variables:
        variable._maybe_initialize_trackable()
        marks.append(variable._update_uid)
    return marks
