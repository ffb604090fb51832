"""Which entry of a checkpoint belongs to which living object.

A checkpoint carries the graph of the objects that it was written from. Both
graphs are walked together, from their roots, by the names of the edges.
"""

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import tensorflow_checkpoints as compat


@dataclasses.dataclass(frozen=True)
class Entry:
    """A value in a checkpoint, and what it belongs to.

    Attributes:
        path: Names of the edges from the root, such as "model/layer/kernel".
        key: What the checkpoint calls the value.
        living: The variable; None: the program has none there.
    """

    path: str
    key: str
    living: Any


@dataclasses.dataclass(frozen=True)
class Entries:
    """What a walk has found.

    Attributes:
        found: Values in the checkpoint.
        missing: Path and variable of what the checkpoint has no value for.
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
    # First in breadth, as TensorFlow does: both then know an object that can
    # be reached in several ways by the same path.
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
    # An object that the checkpoint knows by another path is not missing.
    matched = {id(living) for living in living_of_node.values()}
    missing = [(p, one) for p, one in missing if id(one) not in matched]
    return Entries(list(_values(graph, living_of_node, path_of_node)), missing)


def is_variable(living: Any) -> bool:
    """Whether an object of a program is a variable, of TensorFlow or Keras."""
    return hasattr(living, "dtype") and hasattr(living, "assign")


def value_of(living: Any) -> Any:
    """The variable behind a `keras.Variable`, or itself."""
    return getattr(living, "_value", living)


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
    """Paths of the nodes that nothing living corresponds to, too."""
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
