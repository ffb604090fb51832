"""Elimination of common subexpressions.

An optimizer's update is traced for each variable, but most of what it computes
does not depend on the variable: the learning rate of this step, the powers of
its betas. Also, every line that needs a constant makes a new one.
"""

import dataclasses
from collections.abc import Hashable
from collections.abc import Iterator
from collections.abc import Sequence

from tfps_plugin._compat.graph import tensorflow_graphs as compat
from tfps_plugin.transport.flat_function import FlatFunction
from tfps_plugin.transport.flat_function import FlatOperation
from tfps_plugin.transport.flat_function import Renumbering
from tfps_plugin.transport.passes import reordering
from tfps_plugin.transport.sections import TAKES_LOCK


def merge(function: FlatFunction) -> FlatFunction:
    """Merges operations that return the same.

    Two operations return the same if they have the same type, device,
    attributes and inputs, no side effects, and wait for nothing else. Pure
    computations do not wait for a lock either: the lock waits for them (see
    `sections`).

    Args:
        function: Its operations are not changed.

    Returns:
        The function, with one operation in place of several.
    """
    first: dict[Hashable, int] = {}
    new = Renumbering()
    operations = _free_of_locks(function.operations)
    for number in _locks_last(operations):
        flat = operations[number]
        merged = dataclasses.replace(
            flat,
            inputs=new.outputs(flat.inputs),
            controls=new.controls(flat.controls),
        )
        known = None
        if number >= function.num_arguments:
            known = _what_it_returns(merged)
        if known is not None and known in first:
            new.replace(number, first[known])
            continue
        if known is not None:
            first[known] = len(new.kept)
        new.keep(number, merged)
    return FlatFunction(
        new.kept,
        function.num_arguments,
        new.outputs(function.outputs),
        new.controls(function.controls),
    )


def _free_of_locks(operations: Sequence[FlatOperation]) -> list[FlatOperation]:
    """Returns the operations, with pure computations free of locks.

    An operation with effects that waited for a lock through one of them waits
    for the lock itself.
    """
    free = []
    # For each operation the locks that it no longer waits for.
    dropped: list[tuple[int, ...]] = []
    for flat in operations:
        before = [output.node for output in flat.inputs] + list(flat.controls)
        locks = dict.fromkeys(lock for one in before for lock in dropped[one])
        controls = dict.fromkeys(flat.controls)
        if compat.is_stateful(flat.operation):
            controls.update(locks)
            locks.clear()
        else:
            for one in flat.controls:
                if operations[one].operation.type == TAKES_LOCK:
                    locks[one] = None
                    del controls[one]
        dropped.append(tuple(locks))
        free.append(dataclasses.replace(flat, controls=tuple(controls)))
    return free


def _locks_last(operations: Sequence[FlatOperation]) -> Iterator[int]:
    """Returns the operations' numbers in topological order, locks last.

    A lock is acquired when nothing is left to do without one. Everything else
    keeps its order as far as possible.
    """
    return reordering.in_turn(
        operations,
        lambda number: (
            operations[number].operation.type == TAKES_LOCK,
            number,
        ),
    )


def _what_it_returns(flat: FlatOperation) -> Hashable | None:
    """Returns a key, equal for operations that return the same; else None."""
    if flat.controls or compat.is_stateful(flat.operation):
        return None
    return (
        flat.operation.type,
        flat.device,
        flat.inputs,
        compat.attributes_as_key(flat.operation),
    )
