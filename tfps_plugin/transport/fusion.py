"""Rewrites a step so that it sends few messages.

TensorFlow sends every tensor that one task makes and another one reads by
itself: a message, an answer, and a hand-over between threads for each. A step
of a model with many variables has hundreds. Here the operations of a step are
made anew, so that what can travel together does (`waves`), nearly always as
one tensor (`packing`). Nothing is computed differently; what is only copied may
be copied in another way (`transpositions`).

What is in a loop or in a branch travels together with what is in the same
body. Variants and resources, tensors of unknown rank, and large ones travel
by themselves, as before.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin._compat import tensorflow_captures
from tfps_plugin._compat import tensorflow_graphs as compat
from tfps_plugin.transport import explanation
from tfps_plugin.transport import staging
from tfps_plugin.transport.explanation import Explanation
from tfps_plugin.transport.rewriting import Rewriting

_lock = threading.Lock()
_known: "weakref.WeakKeyDictionary[Any, Fused]" = weakref.WeakKeyDictionary()


class Fused(NamedTuple):
    """What became of a function.

    Attributes:
        function: To be called in its place; None: it itself.
        explanation: What it sends.
    """

    function: Callable[..., Any] | None
    explanation: Explanation


def fuse(
    function: tf.types.experimental.ConcreteFunction,
) -> Callable[..., Any]:
    """A function that does the same with fewer messages.

    Args:
        function: Of workers, as it was traced.

    Returns:
        What to call instead, with the same arguments; the same function if
        that would change nothing.

    Threading: may be called from any thread.
    """
    return _fused(function).function or function


def explain(
    function: tf.types.experimental.ConcreteFunction,
) -> Explanation:
    """What a function sends when it runs on a worker.

    Args:
        function: As for `fuse`.

    Threading: may be called from any thread.
    """
    return _fused(function).explanation


def _fused(function: tf.types.experimental.ConcreteFunction) -> Fused:
    """Rewrites a function, once; `_lock` guards what is known."""
    with _lock:
        known = _known.get(function)
    if known is not None:
        return known
    graph = function.graph
    if compat.is_kept_whole(function):
        return Fused(None, Explanation(()))
    try:
        handles, staged = staging.of_captures(graph)
        rewriting = Rewriting(
            graph,
            tensorflow_captures.homes_of_captures(graph),
            graph.name,
            staged=staged,
        )
        replacement: Callable[..., Any] | None = None
        if rewriting.graph is not None:
            replacement = compat.as_concrete_function(rewriting.graph, function)
            if staged:
                replacement = staging.WithHandles(replacement, handles)
        fused = Fused(replacement, Explanation(tuple(rewriting.bodies)))
    except Exception:
        # It does run without.
        explanation.warn_of(graph.name)
        fused = Fused(None, Explanation(()))
    with _lock:
        return _known.setdefault(function, fused)
