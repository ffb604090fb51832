"""Elimination of common subexpressions.

An optimizer's update is traced for each variable, but most of what it computes
does not depend on the variable: the learning rate of this step, the powers of
its betas. Also, every line that needs a constant makes a new one.
"""

import dataclasses
import heapq
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_graphs as compat
from tfps_plugin.transport.flat_function import FlatFunction
from tfps_plugin.transport.flat_function import FlatOperation
from tfps_plugin.transport.flat_function import Renumbering
from tfps_plugin.transport.sections import TAKES_LOCK

_READ = "ReadVariableOp"


def merge(function: FlatFunction) -> FlatFunction:
    """Merges operations that return the same.

    Two operations return the same if they have the same type, device,
    attributes and inputs, no side effects, and wait for nothing else. Pure
    computations do not wait for a lock either: the lock waits for them (see
    `sections`). Two reads of a variable also return the same if they wait for
    the same operations: TensorFlow has each wait for the writes before it. The
    replicas of a worker read every variable.

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
    return _in_turn(
        operations,
        lambda number: (
            operations[number].operation.type == TAKES_LOCK,
            number,
        ),
    )


def _in_turn(
    operations: Sequence[FlatOperation], turn: Callable[[int], Any]
) -> Iterator[int]:
    """Yields the numbers of operations in topological order.

    Args:
        operations: Operations in any order.
        turn: Maps a number to its priority. Of the operations that are ready,
            the one with the lowest comes first.

    Raises:
        InternalError: If the operations have a cycle.
    """
    readers: list[list[int]] = [[] for _ in operations]
    missing = [0] * len(operations)
    for number, flat in enumerate(operations):
        before = {output.node for output in flat.inputs}
        before.update(flat.controls)
        missing[number] = len(before)
        for one in before:
            readers[one].append(number)
    ready = [(turn(n), n) for n, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    num_left = len(operations)
    while ready:
        _, number = heapq.heappop(ready)
        num_left -= 1
        yield number
        for reader in readers[number]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, (turn(reader), reader))
    if num_left:
        raise errors.InternalError(
            f"{num_left} operations of a step wait for each other. Please "
            "report this."
        )


def _what_it_returns(flat: FlatOperation) -> Hashable | None:
    """Returns a key, equal for operations that return the same; else None."""
    is_read = flat.operation.type == _READ
    if not is_read and (flat.controls or compat.is_stateful(flat.operation)):
        return None
    return (
        flat.operation.type,
        flat.device,
        frozenset(flat.controls),
        flat.inputs,
        compat.attributes_as_key(flat.operation),
    )
