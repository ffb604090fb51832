"""Scopes of a function that is being traced, for another thread.

TensorFlow keeps the scopes that a trace is in (devices, names, control
dependencies, strategies) in thread-locals of the graph. A thread that traces a
part of the same function has to enter the same ones.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


class TracingScopes:
    """The scopes that this thread is in, in the function that it traces.

    Threading: create it on the thread that traces; enter it on any other one.

    Used since TensorFlow 2.20: `Graph._thread_local`.
    """

    def __init__(self) -> None:
        """Records the scopes of the present function."""
        graph: Any = tf.compat.v1.get_default_graph()
        self._graph = graph
        self._scopes = vars(graph._thread_local)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Makes this thread trace the same function, in the same scopes."""
        with self._graph.as_default():
            vars(self._graph._thread_local).update(
                {name: _copied(each) for name, each in self._scopes.items()}
            )
            yield


def _copied(scopes: Any) -> Any:
    # Stacks, lists and dictionaries; the rest does not change.
    return scopes.copy() if hasattr(scopes, "copy") else scopes
