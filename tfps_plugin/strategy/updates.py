"""Runs an optimizer's own update where the variable lives.

`tf.distribute.Strategy.extended.update(variable, fn, args)` is how Keras's
optimizers change variables. Here `fn` runs on the parameter server, under the
lock of the variable:

- a dense gradient: once for every shard, which sees itself as the variable;
- a sparse one (`tf.IndexedSlices`): on the touched rows only, of the variable
  and of its slots, after repeated ids were summed. Cost follows the rows that
  a batch touched, never the table. For optimizers with momentum this is the
  "lazy" form: rows that were not touched do not decay;
- a sparse one in exact mode: the rows are sent, and the ps makes the dense
  gradient of its shard of them. Cost follows the table, on the ps alone.
"""

import contextlib
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.tensorflow_strategy import UpdateContext
from tfps_plugin.strategy.update_parts import UpdatePart
from tfps_plugin.strategy.update_parts import parts_of
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.step_trace import StepTrace


def update(
    variable: Any,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    exact: bool = False,
) -> Any:
    """Calls `fn(variable, *args, **kwargs)` on the ps of `variable`.

    Args:
        variable: A variable of this strategy, or any `tf.Variable`.
        fn: Reads and assigns the variable and its slots.
        args: Its further arguments; a gradient usually comes first.
        kwargs: Its keyword arguments.
        exact: Whether a sparse gradient updates the whole variable.

    Returns:
        What `fn` returns; for a sharded variable a list, one for each shard.

    Raises:
        UnsupportedError: If a sparse argument comes together with another
            that has the shape of the whole variable.
    """
    parts = parts_of(variable, args, exact=exact)
    results = run_parts(
        parts, lambda part: fn(part.variable, *part.args, **kwargs)
    )
    return results if isinstance(variable, ShardedVariable) else results[0]


def run_parts(
    parts: Sequence[UpdatePart], run: Callable[[UpdatePart], Any]
) -> list[Any]:
    """Runs parts of updates, each on its ps.

    Parts under one lock run in one section of it, which begins when all that
    they are given has arrived.

    Args:
        parts: In any order; parts of different variables may be mixed.
        run: Runs one part.

    Returns:
        What `run` returned, in the order of `parts`.
    """
    trace = StepTrace.current()
    results: list[Any] = [None] * len(parts)
    for section in _sections(parts):
        lock = parts[section[0]].lock
        arrivals = [t for index in section for t in parts[index].arrivals]
        # Of parts that do not catch up by themselves.
        behind = {
            index: unseen.now()
            for index in section
            if (unseen := _unseen_steps(parts[index])) is not None
        }
        arrivals += behind.values()
        with (
            contextlib.nullcontext() if lock is None else lock.holding(arrivals)
        ):
            for index in section:
                part = parts[index]
                if index in behind:
                    _unseen_steps(part).store(part.ids_U, behind[index])
                with (
                    tf.device(part.device),
                    UpdateContext(part.device),
                    trace.viewing(part.seen),
                ):
                    results[index] = run(part)
                    if part.finish is not None:
                        part.finish()
    return results


def _unseen_steps(part: UpdatePart) -> Any:
    """Steps that rows have still to see before another optimizer's update."""
    if part.finish is not None or part.shard is None:
        return None
    return part.shard.unseen_steps


def _sections(parts: Sequence[UpdatePart]) -> list[list[int]]:
    """The positions of the parts that run under one lock together."""
    sections: dict[int, list[int]] = {}
    alone = []
    for index, part in enumerate(parts):
        if part.lock is None:
            alone.append([index])
        else:
            sections.setdefault(id(part.lock), []).append(index)
    return [*sections.values(), *alone]
