"""Match between the entries of a checkpoint and the objects of a program.

A checkpoint contains the graph of the objects that it was written from. Both
graphs are walked together from their roots, by the names of the edges.
"""

import collections
import dataclasses
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat.graph import tensorflow_checkpoints as compat
from tfps_plugin.recovery.checkpoints import mismatch
from tfps_plugin.recovery.checkpoints import untracked_state

# TensorFlow's counter of checkpoints; not all checkpoints have it.
_COUNTER = "save_counter"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A value in a checkpoint, and the variable it belongs to.

    Attributes:
        path: Names of the edges from the root, such as "model/layer/kernel".
        key: Key of the value in the checkpoint.
        living: The variable; None if the program has none at that path.
    """

    path: str
    key: str
    living: Any


@dataclasses.dataclass(frozen=True)
class Entries:
    """Result of matching a checkpoint with a program.

    Attributes:
        found: Values in the checkpoint.
        missing: Paths and variables that the checkpoint has no value for.
    """

    found: list[Entry]
    missing: list[tuple[str, Any]]


def find(root: Any, graph: Any) -> Entries:
    """Matches a checkpoint with a program.

    Args:
        root: The `tf.train.Checkpoint`.
        graph: The `TrackableObjectGraph` of the checkpoint.

    Returns:
        All values of the checkpoint, and all variables without one.
    """
    living_of_node: dict[int, Any] = {}
    missing: list[tuple[str, Any]] = []
    path_of_node: dict[int, str] = {0: ""}
    seen: set[int] = set()
    waiting: collections.deque[tuple[str, Any, int | None]] = collections.deque(
        [("", root, 0)]
    )
    # Breadth first, as TensorFlow does it: both then find the same path to an
    # object that can be reached in several ways.
    while waiting:
        path, living, node = waiting.popleft()
        if id(living) in seen:
            continue
        seen.add(id(living))
        children = {}
        if node is not None:
            living_of_node.setdefault(node, living)
            children = {
                child.local_name: child.node_id
                for child in graph.nodes[node].children
            }
        elif is_variable(living):
            missing.append((path, living))
        for name, child in tf.train.TrackableView.children(living).items():
            child_path = f"{path}/{name}" if path else name
            child_node = children.get(name)
            if child_node is not None:
                path_of_node.setdefault(child_node, child_path)
            waiting.append((child_path, child, child_node))
    # An object that the checkpoint has under another path is not missing.
    matched = {id(living) for living in living_of_node.values()}
    missing = [(p, one) for p, one in missing if id(one) not in matched]
    return Entries(list(_values(graph, living_of_node, path_of_node)), missing)


def is_variable(living: Any) -> bool:
    """Returns whether an object is a variable, of TensorFlow or Keras."""
    return hasattr(living, "dtype") and hasattr(living, "assign")


def value_of(living: Any) -> Any:
    """Returns the variable inside a `keras.Variable`; others as they are."""
    return keras_compat.value_of(living, living)


def has_save_counter(graph: Any) -> bool:
    """Returns whether a checkpoint has TensorFlow's counter of checkpoints.

    Args:
        graph: The `TrackableObjectGraph` of the checkpoint.
    """
    return any(c.local_name == _COUNTER for c in graph.nodes[0].children)


def require_match(
    entries: Entries, readers: Sequence[Any], *, prefix: str, strict: bool
) -> None:
    """Raises an error if a checkpoint and a program do not fit.

    Args:
        entries: The match, from `find`.
        readers: Readers of the checkpoint and of those that it needs.
        prefix: Prefix of the checkpoint, for the message.
        strict: Whether missing and unexpected values are errors. Different
            shapes and dtypes always are.

    Raises:
        CheckpointMismatchError: If they do not fit; it lists the differences.
    """
    shapes: dict[str, Any] = {}
    dtypes: dict[str, Any] = {}
    for reader in readers:
        shapes |= reader.get_variable_to_shape_map()
        dtypes |= reader.get_variable_to_dtype_map()
    different = []
    for entry in entries.found:
        if entry.living is None or not is_variable(entry.living):
            continue
        value = value_of(entry.living)
        ours = mismatch.kind(tf.as_dtype(value.dtype).name, tuple(value.shape))
        theirs = mismatch.kind(dtypes[entry.key].name, tuple(shapes[entry.key]))
        if ours != theirs:
            different.append((entry.path, ours, theirs))
    missing, unexpected = [], []
    if strict:
        missing = [path for path, _ in entries.missing if _is_required(path)]
        unexpected = [
            entry.path
            for entry in entries.found
            if entry.living is None and _is_required(entry.path)
        ]
    differences = mismatch.describe(missing, unexpected, different)
    if differences:
        raise errors.CheckpointMismatchError(
            "The checkpoint does not fit the program, and nothing was "
            "restored. Expected the objects of the program that wrote it. "
            f"Received: checkpoint={prefix!r}.\n{differences}\n"
            "Create the same objects as that program and build them first "
            "(model.build(...), optimizer.build(model.trainable_variables)). "
            "If only names differ or are missing, restore(..., strict=False) "
            "restores the values that fit."
        )


def _is_required(path: str) -> bool:
    """Returns whether a value that only one side has is a mismatch.

    Keras creates the states of metrics with the first batch, and TensorFlow
    its counter with the first `save`.
    """
    return path != _COUNTER and not path.startswith(untracked_state.PATH)


def _values(
    graph: Any, living_of_node: dict[int, Any], path_of_node: dict[int, str]
) -> Iterator[Entry]:
    paths = _all_paths(graph, path_of_node)
    for number, node in enumerate(graph.nodes):
        for attribute in node.attributes:
            if attribute.name == compat.VARIABLE_VALUE_KEY:
                yield Entry(
                    paths.get(number, attribute.checkpoint_key),
                    attribute.checkpoint_key,
                    living_of_node.get(number),
                )


def _all_paths(graph: Any, known: dict[int, str]) -> dict[int, str]:
    """Adds the paths of nodes that match no object of the program."""
    paths = dict(known)
    waiting = collections.deque(paths)
    while waiting:
        number = waiting.popleft()
        for child in graph.nodes[number].children:
            if child.node_id not in paths:
                prefix = paths[number]
                paths[child.node_id] = (
                    f"{prefix}/{child.local_name}"
                    if prefix
                    else child.local_name
                )
                waiting.append(child.node_id)
    return paths
