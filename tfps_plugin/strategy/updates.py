"""Updates of variables, which run on their parameter servers.

Keras's optimizers change a variable by
`tf.distribute.Strategy.extended.update(variable, fn, args)`. Here `fn` runs on
the parameter server of the variable, under its lock:

- With a dense gradient, `fn` runs once for every shard and sees the shard as
  the variable.
- With a sparse gradient (`tf.IndexedSlices`), `fn` runs on the touched rows of
  the variable and its slots, after the gradients of repeated ids were summed.
  The cost follows the batch. For optimizers with momentum this is the "lazy"
  form: untouched rows do not decay.
- With a sparse gradient in exact mode, the ps turns the rows that it receives
  into the dense gradient of its shard. The cost follows the table, on the ps
  alone.
"""

import contextlib
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.runtime.tensorflow_strategy import UpdateContext
from tfps_plugin.strategy.update_parts import parts_of
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.updates.update_lock import UpdateLock
from tfps_plugin.variables.updates.update_part import UpdatePart


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
        fn: A function that reads and assigns the variable and its slots.
        args: Further arguments of `fn`; usually the gradient comes first.
        kwargs: Keyword arguments of `fn`.
        exact: Whether a sparse gradient updates the whole variable.

    Returns:
        The result of `fn`; for a sharded variable, a list with one result per
        shard. None for a variable that `StepTrace.only_on` excludes.

    Raises:
        UnsupportedError: If a sparse argument comes together with another
            that has the shape of the whole variable.
    """
    parts = parts_of(variable, args, exact=exact)
    results = run_parts(
        parts, lambda part: fn(part.variable, *part.args, **kwargs)
    )
    if isinstance(variable, ShardedVariable):
        return results
    # A function of another parameter server has no part in it.
    return results[0] if results else None


# AutoGraph cannot convert it, and warns that it cannot.
@tf.autograph.experimental.do_not_convert
def run_parts(
    parts: Sequence[UpdatePart],
    run: Callable[[UpdatePart], Any],
    begin: Callable[[UpdateLock], None] = lambda lock: None,
) -> list[Any]:
    """Runs parts of updates, each on its ps.

    Parts that share a lock run in one critical section, which begins when all
    their arguments have arrived.

    Args:
        parts: Parts of one or several variables, in any order.
        run: A function that runs one part.
        begin: A function that is called under each lock before its parts.

    Returns:
        The results of `run`, in the order of `parts`.
    """
    trace = StepTrace.current()
    results: list[Any] = [None] * len(parts)
    for section in _sections(parts):
        lock = parts[section[0]].lock
        arrivals = [t for index in section for t in parts[index].arrivals]
        # Steps to catch up with, for parts that do not do so themselves.
        behind = {
            index: unseen.now()
            for index in section
            if (unseen := _unseen_steps(parts[index])) is not None
        }
        arrivals += behind.values()
        with (
            contextlib.nullcontext() if lock is None else lock.holding(arrivals)
        ):
            if lock is not None:
                begin(lock)
            for index in section:
                part = parts[index].renewed()
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
    """Record of steps that rows miss, if `run` does not catch up itself."""
    if part.finish is not None or part.shard is None:
        return None
    return part.shard.unseen_steps


def _sections(parts: Sequence[UpdatePart]) -> list[list[int]]:
    """Positions of the parts that share a critical section."""
    sections: dict[int, list[int]] = {}
    alone = []
    for index, part in enumerate(parts):
        if part.lock is None:
            alone.append([index])
        else:
            sections.setdefault(id(part.lock), []).append(index)
    return [*sections.values(), *alone]
