"""Communication fusion: rewrites a step so that it sends few messages.

TensorFlow sends every tensor that one task makes and another one reads in a
message of its own, with an answer and a hand-over between threads. A step of a
model with many variables has hundreds of such messages. Fusion makes a copy of
the step in which all tensors that can travel together do (`waves`), nearly
always as one tensor (`packing`). The computations stay the same.

Tensors in a loop or a branch travel together with others of the same body.
Variants, resources, tensors of unknown rank, and large tensors travel by
themselves, as without fusion.
"""

import dataclasses
import threading
import weakref
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_captures
from tfps_plugin._compat.graph import tensorflow_graphs as compat
from tfps_plugin.cluster.chief import connection
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.transport import explanation
from tfps_plugin.transport import places
from tfps_plugin.transport import staging
from tfps_plugin.transport.explanation import Explanation
from tfps_plugin.transport.explanation import Held
from tfps_plugin.transport.rewriting import Rewriting
from tfps_plugin.variables.storage import on_disk


class Fused(NamedTuple):
    """The result of rewriting a function.

    Attributes:
        function: The function to call instead; None to call the original.
        explanation: The messages that it sends.
    """

    function: Callable[..., Any] | None
    explanation: Explanation


class _FusedFunctions:
    """The fused functions of one connection; one of its parts.

    They belong to the connection because their handle areas do.

    Guarded by `_lock`: the dictionary.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fused: weakref.WeakKeyDictionary[Any, Fused] = (
            weakref.WeakKeyDictionary()
        )

    def get(self, function: Any) -> Fused | None:
        """Returns the fused function; None if it has not been fused yet."""
        with self._lock:
            return self._fused.get(function)

    def keep(self, function: Any, fused: Fused) -> Fused:
        """Keeps a fused function, unless another thread was faster.

        Returns:
            The one that is kept.
        """
        with self._lock:
            return self._fused.setdefault(function, fused)


def fuse(
    function: tf.types.experimental.ConcreteFunction,
) -> Callable[..., Any]:
    """Returns a function that does the same with fewer messages.

    Args:
        function: A function of workers, as it was traced.

    Returns:
        The function to call instead, with the same arguments; `function`
        itself if there is nothing to fuse.

    Threading: may be called from any thread.
    """
    return _fused(function).function or function


def explain(
    function: tf.types.experimental.ConcreteFunction,
    runs_on: explanation.Job = "worker",
) -> Explanation:
    """Returns the messages that a function sends when it runs.

    Args:
        function: As for `fuse`.
        runs_on: Job of the task that runs it.

    Threading: may be called from any thread.
    """
    explained = _fused(function).explanation
    return dataclasses.replace(
        explained,
        bodies=tuple(
            dataclasses.replace(body, runs_on=runs_on)
            for body in explained.bodies
        ),
    )


def _held(graph: compat.FuncGraph) -> tuple[Held, ...]:
    """Returns the variables on parameter servers that a function uses."""
    found = {
        Held(
            places.place(device),
            getattr(each, "path", each.name),
            size,
            size - on_disk.bytes_in_memory(each, size),
        )
        for each in tensorflow_captures.variables(graph).values()
        if places.job(device := each.device) == PARAMETER_SERVER
        and (size := _num_bytes(each)) is not None
    }
    return tuple(sorted(found))


def _num_bytes(variable: Any) -> int | None:
    """Returns the size of a variable; None: unknown."""
    if not variable.shape.is_fully_defined():
        return None
    return int(variable.shape.num_elements() * (variable.dtype.size or 1))


def _fused(function: tf.types.experimental.ConcreteFunction) -> Fused:
    """Rewrites a function, once for each connection."""
    functions = connection.present().part(_FusedFunctions)
    known = functions.get(function)
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
        fused = Fused(
            replacement, Explanation(tuple(rewriting.bodies), _held(graph))
        )
    except Exception:
        # The function also runs without fusion.
        explanation.warn_of(graph.name)
        fused = Fused(None, Explanation(()))
    return functions.keep(function, fused)
